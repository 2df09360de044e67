"""The batches that a server made during a run, from its Prometheus page: the difference of two readings."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any

from tfctr.loadtest.target import Target

_TIMEOUT_S = 5.0
# Histograms of batches, whose _sum / _count is the mean: ours first, then TensorFlow Serving's.
BATCH_ROWS = ("tfctr_batch_rows", ":tensorflow:serving:batching_session:processed_batch_size")
BATCH_REQUESTS = ("tfctr_batch_requests",)

Reading = Mapping[str, float]


def guess_url(target: Target) -> str | None:
    """Where the metrics of ``target`` usually are: its own port (HTTP), or the one after it (gRPC)."""
    if target.transport == "process":
        return None
    port = target.port if target.transport == "http" else target.port + 1
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"http{'s' if target.tls else ''}://{host}:{port}/metrics"


def read(url: str, model: str, headers: Mapping[str, str] | None = None, tls: Any = None) -> Reading:
    """Sums over all versions of ``model``, by series name.

    Raises:
      OSError: nobody answers there.
    """
    request = urllib.request.Request(url, headers=dict(headers or {}))
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as reply:
        return parse(reply.read().decode(errors="replace"), model)


def parse(text: str, model: str) -> Reading:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        if not name.endswith(("_sum", "_count")):
            continue
        if f'model="{model}"' in labels or "model" not in labels:
            found[name] = found.get(name, 0.0) + float(value)
    return found


def achieved(before: Reading, after: Reading) -> dict[str, float]:
    """Means between the two readings: ``rows`` and ``requests`` of a batch, ``batches``."""
    told: dict[str, float] = {}
    for key, names in (("rows", BATCH_ROWS), ("requests", BATCH_REQUESTS)):
        for name in names:
            count = after.get(f"{name}_count", 0.0) - before.get(f"{name}_count", 0.0)
            if count > 0:
                told[key] = (after[f"{name}_sum"] - before.get(f"{name}_sum", 0.0)) / count
                told.setdefault("batches", count)
                break
    return told
