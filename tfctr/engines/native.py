"""Engines run by the native library: opening one from Python, and adding a provider that is written in Python.

Options of the provider ``openvino`` (all optional)::

    {"buckets": [32, 256],    # rows for which a static-shape variant is compiled; [] by default
     "users": 1,              # user rows of those variants, where the tower has any
     "dynamic": true,         # a variant for all other sizes; without it rows between buckets are filled up
     "pad": {"32": 20},       # 20 <= rows < 32 are filled up (zeros) to the variant of 32 rows and the outputs cut
     "chunk": 256,            # a bucket: larger batches (that are no bucket) start with pieces of so many rows
     "warm": [1, 32, 256],    # rows that the dynamic variant is run with when it is opened (kernels are compiled then)
     "contexts": 1,           # contexts made (and warmed) when the engine is opened
     "max_contexts": 2}       # runs at one time; more wait. 0 (the default): processors / threads

A variant has one context per running call. A call that finds none free waits for the next that is given back, while a
thread of the engine makes more, one after the other and up to "max_contexts", as long as calls wait.

A call of exactly a bucket's rows (and users) takes its variant; else it is cut into pieces of "chunk" while it has more
rows; what is left takes the smallest bucket that holds it, if "pad" says so; else the dynamic variant, beyond 32 rows
filled up to one of 16 sizes per power of two (at most a sixteenth more): OpenVINO makes and keeps kernels for every
number of rows that it meets.
The files it reads: role "onnx", and optionally "blob:dynamic" and "blob:<rows>" as ``Engine.export`` gives them. A blob
that does not fit (another model, version, precision or CPU, or damaged) is said in ``describe`` and compiled anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from tfctr.core import library
from tfctr.engines import openvino_library
from tfctr.engines.spec import EngineSpec, EngineTensor
from tfctr.errors import CorruptFileError, InputError, TfctrError, UsageError


class PythonEngine(Protocol):
    """What ``open_callable`` of ``register_engine_provider`` returns. All are called with the GIL held.

    run(inputs, outputs): both are lists of ``(address, dtype, shape)`` in the order of the spec: address an int (host
      memory, C order, alive during the call; those of inputs must not be written to), dtype NumPy's name, shape a tuple
      of ints. It fills the outputs before it returns; their memory is the caller's, so nothing is copied after. Shapes
      and dtypes were checked against the spec, and there is at least one row. May be called from several threads at
      once (where it releases the GIL): keep one context per running call.
    describe(): JSON-able dict for people and for metrics ({"version": ..., "device": ...}).
    close(): optional; the last user let go.

    What they raise ends the call with "<label>: <provider>: <text of the exception>".
    """

    def run(
        self, inputs: list[tuple[int, str, tuple[int, ...]]], outputs: list[tuple[int, str, tuple[int, ...]]]
    ) -> None: ...

    def describe(self) -> dict[str, Any]: ...


def register_engine_provider(name: str, open_callable: Callable[[dict[str, Any]], PythonEngine]) -> None:
    """Adds (or replaces) the provider ``name``, for the op and for ``open_engine``.

    open_callable(spec) opens an engine, once per process for equal specs and files; it runs with the GIL held, when an
    engine is first needed: in the first call of a graph. ``spec`` is a dict: "provider", "precision", "inputs" and
    "outputs" (lists of {"name", "dtype", "shape": list of ints and names of open sizes}), "files" (list of {"role",
    "path", "fingerprint"}), "options" (dict), "threads", "label". Every open size of an output must be one of an input.
    An exception becomes the error of the call, which names the engine, and the next call tries again.
    """

    def opened(text: str) -> PythonEngine:
        return open_callable(json.loads(text))

    library.native().register_engine_provider(name, opened)


def engine_providers() -> list[str]:
    """Providers that are registered in this process now."""
    return list(library.native().engine_providers())


def blob_info(path: str | Path) -> dict[str, Any]:
    """Describes a file of any bytes, as the bundle's store checks it: "kind" ("blob"), "path", "bytes", "fingerprint".

    The fingerprint is the checksum (crc32c) of the contents and the size modulo 2**32, 8 hex digits each. Raises
    OSError.
    """
    return dict(library.native().blob_info(path))


def open_engine(spec: EngineSpec) -> Engine:
    """Opens an engine, or shares the one that is open in this process for the same spec and the same bytes.

    Raises:
      UsageError: the provider is not there or not installed, options make no sense, the provider can't take the model.
      VersionError: the library of the provider is of another version.
      CorruptFileError: a file is missing or damaged.
    """
    if spec.provider == "openvino":
        openvino_library.load()
    native = library.native()
    try:
        return Engine(spec, native.DenseEngine(_spec_dict(spec)))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except (native.CorruptFile, FileNotFoundError) as error:
        raise CorruptFileError(str(error)) from error
    except (RuntimeError, OSError) as error:
        raise TfctrError(str(error)) from error


class Engine:
    """An open engine. ``run`` may be called from any number of threads."""

    def __init__(self, spec: EngineSpec, handle: Any) -> None:
        self.spec = spec
        self._handle = handle

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs it on the caller's thread, without the GIL. Arrays that are not in C order are copied, others not.

        Raises InputError, naming the input, the engine and what was expected; TfctrError for what the provider says.
        """
        wanted = [one.name for one in self.spec.inputs]
        if set(inputs) != set(wanted):
            missing, unknown = sorted(set(wanted) - set(inputs)), sorted(set(inputs) - set(wanted))
            raise InputError(f"engine {self.spec.label!r}: inputs missing: {missing}, unknown: {unknown}")
        arrays = [np.ascontiguousarray(inputs[name]).reshape(np.shape(inputs[name])) for name in wanted]
        try:
            outputs = self._open_handle().run(arrays)
        except ValueError as error:
            raise InputError(str(error)) from error
        except RuntimeError as error:
            raise TfctrError(str(error)) from error
        return {one.name: array for one, array in zip(self.spec.outputs, outputs, strict=True)}

    def export(self) -> dict[str, bytes]:
        """What opening it again is faster with: role of the file -> its bytes ("blob:dynamic", "blob:<rows>")."""
        try:
            return dict(self._open_handle().export())
        except RuntimeError as error:
            raise TfctrError(str(error)) from error

    def describe(self) -> dict[str, Any]:
        """What runs: "provider", "version", "isa", "precision" (read back from the engine), "threads", "variants" (a
        list of {"rows": int | None, "compile_ms", "warm_ms", "from_blob", "note", "contexts", "runs", "padded_runs"}).
        """
        return dict(json.loads(self._open_handle().describe()))

    def close(self) -> None:
        """Lets go; the engine ends with its last user."""
        self._handle = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise UsageError(f"engine {self.spec.label!r} is closed")
        return self._handle


def _spec_dict(spec: EngineSpec) -> dict[str, Any]:
    def tensors(given: tuple[EngineTensor, ...]) -> list[tuple[str, str, str]]:
        return [(one.name, one.dtype, one.dims) for one in given]

    return {
        "provider": spec.provider,
        "precision": spec.precision,
        "inputs": tensors(spec.inputs),
        "outputs": tensors(spec.outputs),
        "files": [(one.role, str(one.path)) for one in spec.files],
        "options": json.dumps(spec.options, sort_keys=True, separators=(",", ":")),
        "threads": spec.threads,
        "label": spec.label,
    }
