"""What ``--dense`` and its companions ask for, checked before any work."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.cache.places import DEFAULT_LIMIT_BYTES
from graph_opt.gate import GateLimits, engine_limits
from tfctr.engines.providers import why_not
from tfctr.engines.spec import PRECISIONS
from tfctr.errors import UsageError

AUTO, TENSORFLOW, OPENVINO, TENSORRT = "auto", "tensorflow", "openvino", "tensorrt"
PROVIDERS = (AUTO, TENSORFLOW, OPENVINO, TENSORRT)
# Where none is asked for: fp32 on a CPU; a GPU is there for fp16.
_DEFAULT_PRECISION = {TENSORFLOW: "fp32", OPENVINO: "fp32", TENSORRT: "fp16"}
_LIMITS = ("max_dp", "max_bias", "max_auc_delta")
# As in export.fp16, which needs onnx; options are checked without it.
DEFAULT_CLAMP, HALF_MAX = 10.0, 65504.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseOptions:
    """What becomes of the dense tower.

    dense: "auto" (the fastest provider that runs on this machine), "tensorflow" (it stays), "openvino", "tensorrt".
    precision: "fp32", "bf16" or "fp16"; None: fp32, for tensorrt fp16. clamp: embeddings are clipped to +-clamp where
    fp16 is computed with; None: they are not. targets: GPU generations that plans are built for ("sm89"); empty: all
    that the library knows (tensorrt_rtx), or the GPU of this machine (tensorrt). max_dp, max_bias, max_auc_delta:
    limits of the accuracy gate; None: those of ``graph_opt.gate.ENGINE_LIMITS``.
    cache_dir: folder of the compile cache; None: the user's; "off": none. cache_limit_bytes: its size, from above.
    required: raise StrictRefusal where a tower stays on TensorFlow. threads: of an engine. islands: form -> node -> why
    it stays fp32 in the fp16 tower of that form, on top of those found (a refresh gives those of before). buckets:
    batch sizes that get a variant of their own; None: those that pay on this machine. reuse: form -> its ``dense`` of a
    manifest: what a refresh takes over instead of choosing (``export.dense.reuse``); None: everything is chosen anew.
    reuse_files: files that ``reuse`` names, by name. stay: why every tower stays on TensorFlow, whatever is asked for;
    "" where none has to.
    """

    dense: str = AUTO
    precision: str | None = None
    clamp: float | None = DEFAULT_CLAMP
    targets: tuple[str, ...] = ()
    max_dp: float | None = None
    max_bias: float | None = None
    max_auc_delta: float | None = None
    cache_dir: Path | str | None = None
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
    required: bool = False
    threads: int = 1
    islands: Mapping[str, Mapping[str, str]] | None = None
    buckets: tuple[int, ...] | None = None
    reuse: Mapping[str, Mapping[str, Any]] | None = None
    reuse_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    stay: str = ""

    def precision_for(self, provider: str) -> str | None:
        """What ``provider`` would compute in; None where it does not know the precision asked for."""
        wanted = self.precision or _DEFAULT_PRECISION[provider]
        return wanted if wanted in PRECISIONS[provider] else None

    def limits(self, precision: str) -> GateLimits:
        """The gate's limits for "fp16" or "bf16"."""
        return engine_limits(precision, self.max_dp, self.max_bias, self.max_auc_delta)


def valid_pairs() -> str:
    """Every provider with its precisions, one line for people."""
    return "; ".join(f"{provider} with {', '.join(known)}" for provider, known in PRECISIONS.items())


def check_dense(options: DenseOptions) -> None:
    """UsageError, naming the flag, what came and what was expected."""
    if options.dense not in PROVIDERS:
        raise UsageError(f"--dense {options.dense}: expected {', '.join(PROVIDERS)}")
    known = sorted({p for precisions in PRECISIONS.values() for p in precisions})
    if options.precision is not None and options.precision not in known:
        raise UsageError(f"--precision {options.precision}: expected {', '.join(known)}")
    if options.dense != AUTO and options.precision_for(options.dense) is None:
        asked = f"--dense {options.dense} --precision {options.precision}"
        raise UsageError(f"{asked}: no such pair; there are {valid_pairs()}")
    if options.dense == TENSORFLOW and options.required:
        raise UsageError("--dense-required: contradicts --dense tensorflow, which leaves the tower where it is")
    if options.dense == OPENVINO and (reason := why_not(OPENVINO)):
        raise UsageError(f"--dense openvino: {reason}")
    _check_numbers(options)
    _check_targets(options)


def _check_numbers(options: DenseOptions) -> None:
    clamp = options.clamp
    if clamp is not None and not (math.isfinite(clamp) and 0 < clamp <= HALF_MAX):
        raise UsageError(f"--clamp {clamp:g}: expected a number above 0 and up to {HALF_MAX:g}, or off")
    if clamp not in (None, DEFAULT_CLAMP) and not _may_be_fp16(options):
        raise UsageError(f"--clamp {clamp:g}: embeddings are clipped in fp16 only, which is for --dense tensorrt")
    for field in _LIMITS:
        limit = getattr(options, field)
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise UsageError(f"--{field.replace('_', '-')} {limit}: expected a number of 0 or more")
    if options.threads < 1:
        raise UsageError(f"threads {options.threads}: an engine needs 1 or more")
    if options.cache_dir == "":
        raise UsageError("--cache-dir '': expected a folder, or off")
    if options.cache_limit_bytes < 1:
        raise UsageError(f"the limit of the compile cache is {options.cache_limit_bytes} bytes; expected 1 or more")
    for rows in options.buckets or ():
        if rows < 1:
            raise UsageError(f"batch size {rows}: expected 1 or more rows")


def _may_be_fp16(options: DenseOptions) -> bool:
    return options.dense in (TENSORRT, AUTO) and options.precision in (None, "fp16")


def _check_targets(options: DenseOptions) -> None:
    if options.targets and options.dense not in (TENSORRT, AUTO):
        raise UsageError(f"--target {','.join(options.targets)}: plans are built with --dense tensorrt only")
    for target in options.targets:
        # Whether a library builds for it is asked where there is one.
        if not re.fullmatch(r"(sm_?)?\d{2,3}|all", target.lower()):
            raise UsageError(f"unknown target {target!r}: --target expects GPU generations, such as sm80,sm89")
    if options.dense == TENSORRT:
        from export.tensorrt.library import load, parse_targets

        parse_targets(options.targets or "all", load())
