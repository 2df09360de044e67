"""``.npz`` archives of arrays, strings included, read without running what a pickle may hold.

NumPy stores arrays of Python objects (our strings) as pickles, and a pickle can run any code when it is loaded. Input
files come from anywhere, so only pickles of plain arrays of strings, bytes and numbers are read.
"""

from __future__ import annotations

import io
import pathlib
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

# What the pickle of an object array of bytes, str and numbers names; protocol 2 writes bytes through _codecs.encode.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
}
ERRORS = (zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, ValueError, OSError, EOFError, MemoryError)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"holds a Python object ({module}.{name}); only strings and numbers are read")
        return super().find_class(module, name)


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name. Raises one of ``ERRORS`` where it is damaged or holds other objects."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                arrays[member.removesuffix(".npy")] = _read_array(file, member)
    return arrays


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes ``arrays`` as ``numpy.savez`` does, under any name (savez itself can't take one called "file")."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=True)


def _read_array(file: IO[bytes], member: str) -> np.ndarray:
    data = io.BytesIO(file.read())
    version = np.lib.format.read_magic(data)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(data)
    if not dtype.hasobject:
        data.seek(0)
        return np.lib.format.read_array(data, allow_pickle=False)
    try:
        array = _ArrayUnpickler(data).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle raises anything: KeyError, TypeError, AttributeError, ...
        raise pickle.UnpicklingError(f"{member}: damaged: {error}") from error
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise ValueError(f"{member}: holds no array of the shape {shape} that it announces")
    return array
