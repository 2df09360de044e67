"""What an engine is made of: plain values, nothing imported.

The same values stand in the attributes of the op ``TfctrDenseEngine`` (``tfctr.engines.node``), so an engine of a
bundle and one that is opened from Python are one and the same thing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfctr.errors import UsageError

PRECISIONS = {"tensorflow": ("fp32",), "openvino": ("fp32", "bf16"), "tensorrt": ("fp32", "fp16")}
"""Provider -> the precisions it has, its default first (tensorrt's default is chosen by the converter: fp16)."""

ROWS, USER_ROWS = "N", "U"
"""Names of open dimensions that mean something: rows of the batch, rows of users (split forms)."""

DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "int8", "bool"),
    *("int16", "uint16", "uint32", "uint64"),
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine.

    name: by which it is bound, the ONNX model's. dtype: NumPy's name. shape: sizes, and names for the open ones, as the
    ONNX model has them: "N" rows, "U" user rows, others by their own names. Equal names are equal sizes, which every
    call is checked for; an output's open size is read off the inputs. Values of an int64 input "row_to_user" [N] are
    checked to be rows of "U".
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"engine tensor {self.name!r}: dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        for size in self.shape:
            named = isinstance(size, str) and _NAME.fullmatch(size)
            if not named and not (isinstance(size, int) and size >= 0):
                raise UsageError(
                    f"engine tensor {self.name!r}: size {size!r} is neither a number nor a name of letters and digits"
                )

    @property
    def dims(self) -> str:
        """The shape as the op writes it: ``"N,416"``; a scalar is ``""``."""
        return ",".join(str(size) for size in self.shape)

    @staticmethod
    def parse(name: str, dtype: str, dims: str) -> EngineTensor:
        """The inverse of ``dims``."""
        sizes = dims.split(",") if dims else []
        return EngineTensor(name, dtype, tuple(int(size) if size.isdecimal() else size for size in sizes))


@dataclasses.dataclass(frozen=True)
class EngineFile:
    """A file an engine is made from. role: "onnx", "fp16_onnx", "plan:sm89", "blob:dynamic", "blob:32"..."""

    role: str
    path: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """An engine.

    precision: one of ``PRECISIONS[provider]`` for the providers named there. options: JSON-able, the provider's own;
    for openvino see ``tfctr.engines.native``. threads: of one run; 1 is the caller's own. label: for messages (the
    form).
    """

    provider: str
    precision: str
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    files: tuple[EngineFile, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    threads: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        check_precision(self.provider, self.precision)
        if self.threads < 1:
            raise UsageError(f"engine {self.label!r}: threads {self.threads}: expected 1 or more")
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [one.name for one in tensors]
            if len(set(names)) < len(names):
                raise UsageError(f"engine {self.label!r}: {what} of one name: {', '.join(sorted(names))}")


def check_precision(provider: str, precision: str) -> None:
    """UsageError, naming the valid ones, for a precision that a known provider lacks."""
    valid = PRECISIONS.get(provider)
    if valid is not None and precision not in valid:
        pairs = "; ".join(f"{name}: {', '.join(known)}" for name, known in PRECISIONS.items())
        raise UsageError(f"provider {provider} has no precision {precision} (valid: {pairs})")
