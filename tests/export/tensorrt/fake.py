"""A TensorRT of the other kind: builds for its machine's GPU, has no list of targets; records what it is told."""

import types


class Fake(types.SimpleNamespace):
    """As much of the module as building touches. fail: "parse", "profile", "build" or None."""

    def __init__(self, fail=None, says=()):
        self.calls = []
        super().__init__(
            __version__="11.4.0",
            ILogger=_logger_class(),
            NetworkDefinitionCreationFlag=types.SimpleNamespace(STRONGLY_TYPED=1),
            BuilderFlag=types.SimpleNamespace(REFIT="refit-flag"),
            MemoryPoolType=types.SimpleNamespace(WORKSPACE="workspace"),
        )
        self.OnnxParser = lambda network, log: _Parser(fail)
        self.Builder = lambda log: _Builder(self, log, fail, says)


def _logger_class():
    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

        def __init__(self):
            pass

    return ILogger


class _Parser:
    num_errors = 1

    def __init__(self, fail):
        self.fail = fail

    def parse(self, data):
        return self.fail != "parse"

    def get_error(self, k):
        return types.SimpleNamespace(desc=lambda: "no importer for Frobnicate")


class _Config:
    def __init__(self, fake, fail):
        object.__setattr__(self, "fake", fake)
        object.__setattr__(self, "fail", fail)

    def __setattr__(self, name, value):
        self.fake.calls.append((name, value))

    def set_flag(self, flag):
        self.fake.calls.append(("set_flag", flag))

    def set_memory_pool_limit(self, pool, size):
        self.fake.calls.append((pool, size))

    def add_optimization_profile(self, profile):
        self.fake.calls.append(("profile", dict(profile.shapes)))
        return -1 if self.fail == "profile" else 0


class _Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, least, best, most):
        self.shapes[name] = (least, best, most)


class _Builder:
    def __init__(self, fake, log, fail, says):
        self.fake, self.log, self.fail, self.says = fake, log, fail, says

    def create_network(self, flags):
        self.fake.calls.append(("network", flags))

    def create_builder_config(self):
        return _Config(self.fake, self.fail)

    def create_optimization_profile(self):
        return _Profile()

    def build_serialized_network(self, network, config):
        for severity, text in self.says:
            self.log.log(getattr(self.fake.ILogger, severity), text)
        return None if self.fail == "build" else b"plan"
