"""What profiling has made so far, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import core

if TYPE_CHECKING:
    from tfctr.serving.server.profiles import Profiles


def collect(profiles: Profiles | None) -> Iterator[core.Metric]:
    """Models that were never traced have no samples."""
    traced = core.CounterMetricFamily("tfctr_traced_runs", "Runs that were traced", labels=["model"])
    lost = core.CounterMetricFamily(
        "tfctr_traces_lost", "Traces that were due, and are no file", labels=["model", "reason"]
    )
    size = core.GaugeMetricFamily("tfctr_profile_bytes", "Files of traces and recordings", labels=["model"])
    for model, counts, on_disk in () if profiles is None else profiles.counts():
        traced.add_metric([model], counts.traced)
        for reason, count in (
            ("behind", counts.dropped),
            ("run", counts.run_failed),
            ("write", counts.write_failed),
        ):
            lost.add_metric([model, reason], count)
        size.add_metric([model], on_disk)
    yield from (traced, lost, size)
