"""The packed layout (D4) in NumPy: for parity checks and tests; serving packs in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64


def pack(arrays: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """(arena uint8[n], shapes int64[m], strings object[s]) of inputs in layout order.

    shapes: for each input rank, d0, ..., d(rank-1). Each numeric input starts at a multiple of 64 bytes; strings go in
    order.
    """
    shapes: list[int] = []
    parts: list[bytes] = []
    strings: list[Any] = []
    for array in arrays:
        shapes += [array.ndim, *array.shape]
        if array.dtype == object:
            strings += array.reshape(-1).tolist()
            continue
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data + b"\0" * (-len(data) % ALIGNMENT))
    arena = np.frombuffer(b"".join(parts), np.uint8)
    return arena, np.array(shapes, np.int64), np.array(strings, dtype=object)
