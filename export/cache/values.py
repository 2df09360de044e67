"""Which constants are weights, and digests and short texts of values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

# ONNX: inputs whose value decides what the operation is, so a constant there is never a weight.
STRUCTURAL_INPUTS = frozenset(
    {
        ("Clip", 1),
        ("Clip", 2),
        ("CumSum", 1),
        ("Dropout", 1),
        ("OneHot", 2),
        ("Pad", 2),
        ("Pow", 1),
        ("Range", 0),
        ("Range", 1),
        ("Range", 2),
        ("Resize", 1),
        ("Resize", 2),
        ("Upsample", 1),
    }
)
_SHOWN = 8


def is_weight(dtype: np.dtype, rank: int) -> bool:
    """A weight is a floating constant with at least one dimension: kernels, biases (those of one unit too), folded
    batch norms, slopes. A floating scalar is part of the structure (epsilon, scale, clamp, exponent, mask value), and
    so is everything that is no float (axes, shapes, masks, texts).
    """
    return rank >= 1 and is_float(dtype)


def is_float(dtype: np.dtype) -> bool:
    """float16 to float64, and what ml_dtypes adds (bfloat16, float8...)."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def digest_bytes(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of the elements; texts with their lengths."""
    if array.dtype.kind in "OSU":
        digest = hashlib.sha256()
        for text in array.reshape(-1):
            data = text if isinstance(text, bytes) else str(text).encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()
    return digest_bytes(np.ascontiguousarray(array).tobytes())


def value_text(array: np.ndarray) -> str:
    """A constant as people and keys have it: the values themselves where they are few, and always their digest."""
    shown: Any = array.reshape(-1)[:_SHOWN].tolist()
    more = "..." if array.size > _SHOWN else ""
    return f"{array.dtype.name}{list(array.shape)} {shown}{more} #{array_digest(array)[:32]}"
