"""What a process uses, from /proc/self/status (Linux)."""

from __future__ import annotations

import pathlib

_FIELDS = ("VmHWM", "VmRSS", "RssAnon", "RssFile")


def memory_mb() -> dict[str, float]:
    """Peak and current resident memory in MB; mapped table pages count in VmHWM, VmRSS and RssFile, not in RssAnon."""
    found = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[name] = int(rest.split()[0]) / 1024
    return found


def reset_peak() -> None:
    """Sets VmHWM back to the current VmRSS."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
