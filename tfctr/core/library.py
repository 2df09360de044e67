"""Loads the native libraries, once, after checking that TensorFlow is the release they were built for.

`import tfctr` calls `load_with_tensorflow`: the ops are registered at once when TensorFlow is in the process already,
else as soon as it is imported. So `tf.saved_model.load` of a bundle works after `import tfctr` in either order, while
`tfctr --help` does not pay the seconds that importing TensorFlow takes.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tfctr.errors import CorruptFileError, InternalError, UsageError, VersionError
from tfctr.version import TENSORFLOW_MINOR, __version__

OPS_LIBRARY = Path(__file__).resolve().parent / "libtfctr_ops.so"
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu")
_lock = threading.RLock()
_ops: Any = None
_quiet_import = False
_then: list[str] = []  # modules that are imported once the ops are registered


def installed_tensorflow() -> str | None:
    """Returns the version of TensorFlow, without importing it; None when there is none."""
    loaded = getattr(sys.modules.get("tensorflow"), "__version__", None)
    if loaded:
        return str(loaded)
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_tensorflow(version: str | None) -> None:
    """Raises VersionError, naming both versions, unless `version` is of the minor release tfctr was built for."""
    if version is None:
        raise VersionError(
            f"tfctr {__version__} needs TensorFlow {TENSORFLOW_MINOR}.*, but TensorFlow is not installed"
        )
    if ".".join(version.split(".")[:2]) != TENSORFLOW_MINOR:
        raise VersionError(
            f"tfctr {__version__} is built for TensorFlow {TENSORFLOW_MINOR}.*, but TensorFlow {version} is installed: "
            f"install tensorflow=={TENSORFLOW_MINOR}.*, or a tfctr release for {version}"
        )


def load() -> Any:
    """Registers tfctr's ops with TensorFlow (importing it) and returns the op module.

    Returns:
      The module of generated op wrappers, as `tf.load_op_library` makes it. Further calls return the same one.

    Raises:
      VersionError: TensorFlow is of another minor release; the library is not touched.
      InternalError: the library is missing or does not load.
    """
    global _ops
    with _lock:
        if _ops is None:
            check_tensorflow(installed_tensorflow())
            import tensorflow as tf

            check_tensorflow(tf.__version__)
            if _ops is not None:  # the import hook below has done it
                return _ops
            if not OPS_LIBRARY.is_file():
                raise InternalError(f"the op library is missing: {OPS_LIBRARY} (run `make build`, or reinstall tfctr)")
            try:
                _ops = tf.load_op_library(str(OPS_LIBRARY))
            except tf.errors.OpError as error:
                raise InternalError(f"the op library does not load: {OPS_LIBRARY}: {error.message}") from error
            for module in _then:
                importlib.import_module(module)
        return _ops


def load_op_libraries(paths: Iterable[str | Path]) -> None:
    """Registers a user's own op libraries (`--op-library`), as models with custom ops need.

    Raises:
      UsageError: a path is missing or is no op library for this TensorFlow.
    """
    import tensorflow as tf

    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"{path}: no such op library")
        try:
            tf.load_op_library(os.fspath(Path(path).resolve()))  # a bare name would be looked up in system folders
        except tf.errors.OpError as error:
            raise UsageError(
                f"{path}: is not an op library that TensorFlow {tf.__version__} can load: {error.message}"
            ) from error


def hide_import_log() -> None:
    """Keeps what TensorFlow's C++ code writes to stderr while it is imported off a command's output.

    It reports a missing GPU there, whatever the log level. An import that fails shows everything.
    """
    global _quiet_import
    _quiet_import = True


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Sends file descriptor 2 to a temporary file; shows what came if the body raises."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


@functools.cache
def native() -> ModuleType:
    """Returns the pybind11 module `tfctr.core._native`, with TensorFlow and the ops loaded before it."""
    load()
    return importlib.import_module("tfctr.core._native")


@contextlib.contextmanager
def native_errors() -> Iterator[None]:
    """What :func:`native` raises as errors of tfctr: damaged files as CorruptFileError, missing ones and those that do
    not fit as UsageError; disk errors stay OSError.
    """
    try:
        yield
    except native().CorruptFile as error:
        raise CorruptFileError(str(error)) from error
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error


def check_isa() -> None:
    """UsageError where the environment's TFCTR_ISA is no instruction set, or one that this CPU lacks."""
    try:
        native().isa_name()
    except ValueError as error:
        raise UsageError(str(error)) from error


def load_with_tensorflow(then: Iterable[str] = ()) -> None:
    """Checks TensorFlow's version; loads the ops now if TensorFlow is imported, else right after it will be.

    Args:
      then: modules to import once the ops are loaded: they tell TensorFlow how to save and load our objects.
    """
    _then.extend(then)
    check_tensorflow(installed_tensorflow())
    if "tensorflow" in sys.modules:
        load()
    elif not any(isinstance(finder, _AfterTensorflow) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTensorflow())


class _AfterTensorflow(importlib.abc.MetaPathFinder):
    """Import hook for the one module `tensorflow`: lets it load as ever, then registers the ops, then is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoadOpsAfter(spec.loader)
        return spec


class _LoadOpsAfter(importlib.abc.Loader):
    """Wraps TensorFlow's own loader."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with _stderr_held_back() if _quiet_import else contextlib.nullcontext():
            self._loader.exec_module(module)
        load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
