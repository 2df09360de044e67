"""What this CPU can do that decides how an engine runs, as the operating system reports it."""

from __future__ import annotations

import functools
from pathlib import Path

# Best first; all flags of a line must be there.
_LEVELS = (
    ("amx_bf16", {"amx_tile", "amx_bf16", "avx512_bf16"}),
    ("avx512_bf16", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}),
    ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ("avx2", {"avx2", "fma", "f16c"}),
)


@functools.cache
def cpu_isa() -> str:
    """Returns "baseline", "avx2", "avx512", "avx512_bf16" or "amx_bf16": the best that CPU and kernel support."""
    return isa_of_flags(_cpu_flags())


def supports_bf16() -> bool:
    """Whether bfloat16 towers run in hardware here."""
    return cpu_isa() in ("avx512_bf16", "amx_bf16")


def isa_of_flags(flags: set[str]) -> str:
    """flags: as in the line "flags" of /proc/cpuinfo."""
    return next((name for name, needed in _LEVELS if needed <= flags), "baseline")


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
