"""Loads the native libraries, once, after checking that TensorFlow is the release they were built for.

`import tfctr` calls `load_with_tensorflow`: the ops are registered at once when TensorFlow is in the process already,
else as soon as it is imported. So `tf.saved_model.load` of a bundle works after `import tfctr` in either order, while
`tfctr --help` does not pay the seconds that importing TensorFlow takes.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tfctr.errors import InternalError, UsageError, VersionError
from tfctr.version import TENSORFLOW_MINOR, __version__

OPS_LIBRARY = Path(__file__).resolve().parent / "libtfctr_ops.so"
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu")
_lock = threading.RLock()
_ops: Any = None


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
        raise VersionError(f"tfctr {__version__} needs TensorFlow {TENSORFLOW_MINOR}.*, but TensorFlow is not installed")
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
        return _ops


def load_op_libraries(paths: Sequence[str]) -> None:
    """Registers a user's own op libraries (`--op-library`), as models with custom ops need.

    Raises:
      UsageError: a path is missing or is no op library for this TensorFlow.
    """
    import tensorflow as tf

    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"{path}: no such op library")
        try:
            tf.load_op_library(path)
        except tf.errors.OpError as error:
            raise UsageError(
                f"{path}: is not an op library that TensorFlow {tf.__version__} can load: {error.message}"
            ) from error


def native() -> ModuleType:
    """Returns the pybind11 module `tfctr.core._native`, with TensorFlow and the ops loaded before it."""
    load()
    return importlib.import_module("tfctr.core._native")


def load_with_tensorflow() -> None:
    """Checks TensorFlow's version; loads the ops now if TensorFlow is imported, else right after it will be."""
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
        self._loader.exec_module(module)
        load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
