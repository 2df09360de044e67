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


class InternalError(TfctrError):
    """A broken promise inside tfctr itself; please report it."""

    exit_code = 1
