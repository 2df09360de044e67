"""The bare C++ gather loop, compiled on first use, callable on the same tables and ids as the op."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
from collections.abc import Sequence

import numpy as np

_SOURCE = pathlib.Path(__file__).with_name("gather_loop.cc")
_LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "build" / "bench" / "gather_loop.so"
WIDTH = 16


def load() -> ctypes.CDLL:
    """Compiles (for AVX2, like the op's kernel on such machines) where the source is newer, and loads the loop."""
    if not _LIBRARY.exists() or _LIBRARY.stat().st_mtime < _SOURCE.stat().st_mtime:
        _LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-O3", "-std=c++17", "-shared", "-fPIC", "-mavx2", "-mfma", "-ffp-contract=off"]
        subprocess.run(["g++", *flags, str(_SOURCE), "-o", str(_LIBRARY)], check=True)
    library = ctypes.CDLL(str(_LIBRARY))
    library.tfctr_gather_loop.restype = ctypes.c_int64
    return library


class GatherLoop:
    """Safe mean lookups of many sparse features by the bare loop."""

    def __init__(self, tables: Sequence[np.ndarray]):
        """``tables``: float32 [V, 16] each, C order; kept, not copied."""
        self._tables = list(tables)
        self._library = load()
        self._pointers = _pointers(self._tables)

    def bind(self, ids: Sequence[np.ndarray], indices: Sequence[np.ndarray], rows: int) -> Batch:
        """Fixes a batch: int64 ids [N] and indices [N, 2] per feature, ``rows`` output rows."""
        return Batch(self, ids, indices, rows)


class Batch:
    """One batch, ready to run: ``output`` float32 [rows, features * 16] is written by ``run``."""

    def __init__(self, loop: GatherLoop, ids: Sequence[np.ndarray], indices: Sequence[np.ndarray], rows: int):
        self._loop, self._rows = loop, rows
        self._inputs = (list(ids), list(indices))
        self.output = np.zeros((rows, len(ids) * WIDTH), np.float32)
        self._ids, self._indices = _pointers(ids), _pointers(indices)
        self._sizes = (ctypes.c_int64 * len(ids))(*[len(i) for i in ids])

    def run(self) -> int:
        """Runs the loop once; returns its own time in nanoseconds."""
        loop = self._loop
        taken = loop._library.tfctr_gather_loop(
            ctypes.c_int64(len(loop._tables)),
            ctypes.c_int64(self._rows),
            loop._pointers,
            ctypes.c_int64(len(loop._tables[0])),
            self._ids,
            self._indices,
            self._sizes,
            ctypes.c_void_p(self.output.ctypes.data),
        )
        if taken < 0:
            raise ValueError("an id is out of range or rows are not in order")
        return int(taken)


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
