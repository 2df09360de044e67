"""The few error classes of tfctr. Each carries the exit code the command line ends with.

A message is one line that names the input, model, feature or file, what came and what was expected.
"""


class TfctrError(Exception):
    """Base class: everything tfctr raises on purpose."""

    exit_code = 1


class UsageError(TfctrError):
    """Bad arguments: a missing path, no SavedModel there, an unknown tag or signature, an output that exists."""

    exit_code = 2


class InputError(TfctrError):
    """Input data that does not fit the model: names the feature, what came and what was expected."""

    exit_code = 2


class CorruptFileError(TfctrError):
    """A file whose checksum, size or header is wrong: names the file and what was expected."""

    exit_code = 2


class VersionError(TfctrError, ImportError):
    """A version that does not fit, such as another TensorFlow minor release: names both versions."""

    exit_code = 2


class OutputsDifferError(TfctrError):
    """Two models give different outputs for the same inputs."""

    exit_code = 3


class EngineDiffersError(OutputsDifferError):
    """A form whose dense tower an engine runs gives other outputs than the form that it stands for."""


class StrictRefusal(TfctrError):
    """`--strict` or `--require-fused` asked for something that did not hold; nothing was written."""

    exit_code = 4


class ConvertAnewError(TfctrError):
    """A bundle can't be refreshed with this model: its structure is another one, a rewrite that held because of a value
    holds no more, or the bundle lacks what a refresh needs. Names what differs; `tfctr convert` is the way.
    """

    exit_code = 5


class NotFoundError(TfctrError):
    """A model, version, label or signature that is asked for by name and is not there; names what is."""

    exit_code = 2


class _GivenUp(TfctrError):
    """stage: where a request was when it failed: parse, pack, queue, batch, run, reply; "" before any."""

    def __init__(self, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class DeadlineError(_GivenUp):
    """The request's time was over; ``stage`` says where it was given up. It was not started after its deadline."""


class OverloadedError(_GivenUp):
    """A queue or another limit is full: the same request may succeed later."""


class UnavailableError(_GivenUp):
    """What would answer is not there (yet, or any more): still loading, draining, closed."""


class VersionRefusedError(TfctrError):
    """A version of a model that somebody asked for may not serve: damaged, half copied, or unlike the one that does."""


class UnimplementedError(TfctrError):
    """A part of a protocol that is not offered here."""


class CancelledError(_GivenUp):
    """Whoever asked gave the request up."""


class InternalError(TfctrError):
    """A broken promise inside tfctr itself; please report it."""

    exit_code = 1
