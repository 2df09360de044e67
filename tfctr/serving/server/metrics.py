"""Metrics for Prometheus: what the fronts answered, what the models' executors did, which versions serve.

Two sources. The fronts call :meth:`Metrics.answered` once per request: a dictionary look-up, a bisection and an
addition under an uncontended lock, about a microsecond. Everything else (stages, batches, executors, tables, versions)
is counted in C++ and read when somebody scrapes (``metrics_models.py``). ``docs/monitoring.md`` lists all names.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import prometheus_client
from prometheus_client import core
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tfctr.serving.server import metrics_models, metrics_profiles
from tfctr.version import TENSORFLOW_MINOR, __version__

if TYPE_CHECKING:
    from tfctr.serving.server.limits import Bodies
    from tfctr.serving.server.logs import RequestLog
    from tfctr.serving.server.metrics_models import Models
    from tfctr.serving.server.profiles import Profiles

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

EDGES_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper edges of the buckets of request durations, in seconds; the last bucket is open."""

MOST_SERIES = 20_000
"""Combinations of labels that are counted apart; what comes after is counted under model "other"."""

RETIRE_AFTER_S = 600.0
"""A version that is not loaded any more and had no request for this long leaves the metrics."""

# TF Serving's names of the methods that it measures.
_TFS_APIS = {
    "Predict": "predict",
    "Classify": "classify",
    "Regress": "regress",
    "MultiInference": "multi_inference",
    "GetModelMetadata": "get_model_metadata",
}


class Key(NamedTuple):
    """The labels of one series of requests; ``version`` "" where no version answered."""

    transport: str
    api: str
    method: str
    model: str
    version: str
    code: str


class Cell:
    """Durations of the requests of one :class:`Key`."""

    __slots__ = ("changed_at", "counts", "lock", "seen", "sum")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts = [0] * (len(EDGES_S) + 1)
        self.sum = 0.0
        self.seen = 0  # requests at the last scrape, and when that number changed: what nobody uses retires
        self.changed_at = 0.0


class Metrics:
    """The metrics of one server. Thread-safe.

    Args:
      models: what is served; None: nothing is (yet).
      enabled: False: requests are not counted; models and process still are.
      ready: what readiness says.
      log: whose dropped lines are counted.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        models: Models | None = None,
        *,
        enabled: bool = True,
        ready: Callable[[], bool] | None = None,
        log: RequestLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.enabled = enabled
        self._models = models
        self._ready = ready
        self._profiles: Profiles | None = None
        self._log = log
        self._clock = clock
        self._bodies: Bodies | None = None
        self._cells: dict[tuple[Any, ...], Cell] = {}
        self._retired: dict[Key, Cell] = {}  # of versions that are gone, without their version, for TF Serving's names
        self._making = threading.Lock()
        self._scraping = threading.Lock()
        self._family = metrics_models.ModelFamilies()
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # type: ignore[arg-type]
        prometheus_client.ProcessCollector(registry=self._registry)

    def watch(self, models: Models, ready: Callable[[], bool], bodies: Bodies, profiles: Profiles) -> None:
        """Says whose models, requests and profiles these metrics are about, once there are some."""
        self._models, self._ready, self._bodies, self._profiles = models, ready, bodies, profiles

    def answered(
        self, transport: str, api: str, method: str, model: str, version: int | None, code: str, seconds: float
    ) -> None:
        """Counts one answer; see ServerContext.answered."""
        if not self.enabled:
            return
        key = (transport, api, method, model, version, code)
        cell = self._cells.get(key) or self._make(key)
        with cell.lock:
            cell.counts[bisect.bisect_left(EDGES_S, seconds)] += 1
            cell.sum += seconds

    def render(self) -> tuple[str, bytes]:
        """Content type and body of /metrics."""
        with self._scraping:
            return CONTENT_TYPE, prometheus_client.generate_latest(self._registry)

    def collect(self) -> Iterator[core.Metric]:
        """For prometheus_client."""
        info = core.GaugeMetricFamily("tfctr_server", "The server that runs", labels=["version", "tensorflow"])
        info.add_metric([__version__, TENSORFLOW_MINOR], 1)
        yield info
        ready = self._ready() if self._ready else False
        yield core.GaugeMetricFamily("tfctr_ready", "1: every model has a version that serves", value=float(ready))
        if self._log is not None:
            dropped = core.CounterMetricFamily(
                "tfctr_log_lines_dropped",
                "Lines left out: over the rate, writer behind, writing failed",
                labels=["reason"],
            )
            for reason, count in self._log.dropped.items():
                dropped.add_metric([reason], count)
            yield dropped
        yield from self._of_bodies()
        yield from self._family.collect(self._models)
        yield from metrics_profiles.collect(self._profiles)
        yield from self._requests()

    def _of_bodies(self) -> Iterator[core.Metric]:
        held, refused = (0, 0) if self._bodies is None else (self._bodies.held, self._bodies.refused)
        yield core.GaugeMetricFamily("tfctr_body_bytes", "Bytes of request bodies that are held now", value=held)
        yield core.CounterMetricFamily(
            "tfctr_bodies_refused", "Bodies refused as all of them would take too much memory", value=refused
        )

    def _make(self, key: tuple[Any, ...]) -> Cell:
        transport, api, method, model, _, code = key
        with self._making:
            if self._models is not None and model not in self._models.names:
                key = (transport, api, method, "", None, code)  # strangers' names make no series
            elif key not in self._cells and len(self._cells) >= MOST_SERIES:
                key = (transport, api, method, "other", None, code)
            if key in self._cells:
                return self._cells[key]
            cells = dict(self._cells)
            cell = cells.setdefault(key, Cell())
            cell.changed_at = self._clock()
            self._cells = cells  # swapped, never changed: readers take no lock
            return cell

    def _requests(self) -> Iterator[core.Metric]:
        cells = self._snapshot()
        labels = ["transport", "api", "method", "model", "version", "code"]
        total = core.CounterMetricFamily("tfctr_requests", "Requests by how they ended (gRPC status)", labels=labels)
        by_path: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for key, counts, seconds in cells:
            total.add_metric(list(key), sum(counts))
            _add(by_path, key[:5], counts, seconds)
        duration = core.HistogramMetricFamily(
            "tfctr_request_seconds", "From the first byte seen to the reply", labels=labels[:5]
        )
        for path, (counts, seconds) in by_path.items():
            duration.add_metric(list(path), metrics_models.cumulative(EDGES_S, counts), sum_value=seconds)
        yield total
        yield duration
        yield from self._tf_serving(cells)

    def _tf_serving(self, cells: list[tuple[Key, list[int], float]]) -> Iterator[core.Metric]:
        """The same under TF Serving's names: microseconds, and no version."""
        retired = [(key, list(cell.counts), cell.sum) for key, cell in self._retired.items()]
        statuses: dict[tuple[str, str], int] = {}
        paths: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for key, counts, seconds in cells + retired:
            if key.api != "tfs" or key.method not in _TFS_APIS:
                continue
            where = (key.model, key.code)
            statuses[where] = statuses.get(where, 0) + sum(counts)
            entry = "GRPC" if key.transport == "grpc" else "REST"
            _add(paths, (key.model, _TFS_APIS[key.method], entry), counts, seconds)
        # "Unknown" type: their counter has no _total, which the counters of the library always get.
        total = core.UnknownMetricFamily(
            ":tensorflow:serving:request_count", "Requests by status", labels=["model_name", "status"]
        )
        for (model, code), count in statuses.items():
            total.add_metric([model, code], count)
        yield total
        latency = core.HistogramMetricFamily(
            ":tensorflow:serving:request_latency",
            "Microseconds from request to reply",
            labels=["model_name", "API", "entrypoint"],
        )
        edges = [edge * 1e6 for edge in EDGES_S]
        for path, (counts, seconds) in paths.items():
            latency.add_metric(list(path), metrics_models.cumulative(edges, counts), sum_value=seconds * 1e6)
        yield latency

    def _snapshot(self) -> list[tuple[Key, list[int], float]]:
        """All cells as they are now; versions that are gone and quiet go into the retired ones."""
        now = self._clock()
        loaded = None if self._models is None else self._models.loaded()
        taken, gone = [], []
        for raw, cell in self._cells.items():
            transport, api, method, model, version, code = raw
            key = Key(transport, api, method, model, "" if version is None else str(version), code)
            with cell.lock:
                counts, seconds = list(cell.counts), cell.sum
            requests = sum(counts)
            if requests != cell.seen:
                cell.seen, cell.changed_at = requests, now
            quiet = now - cell.changed_at > RETIRE_AFTER_S
            if quiet and loaded is not None and raw[4] is not None and (key.model, raw[4]) not in loaded:
                gone.append((raw, key))
            taken.append((key, counts, seconds))
        if gone:
            self._retire(gone)
            left = {key for _, key in gone}
            taken = [one for one in taken if one[0] not in left]
        return taken

    def _retire(self, gone: Sequence[tuple[tuple[Any, ...], Key]]) -> None:
        with self._making:
            cells = dict(self._cells)
            for raw, key in gone:
                cell = cells.pop(raw)
                into = self._retired.setdefault(key._replace(version=""), Cell())
                with cell.lock:
                    into.counts = [a + b for a, b in zip(into.counts, cell.counts, strict=True)]
                    into.sum += cell.sum
            self._cells = cells


def _add(into: dict[Any, tuple[list[int], float]], key: Any, counts: Sequence[int], seconds: float) -> None:
    if key in into:
        old, sum_of_old = into[key]
        into[key] = [a + b for a, b in zip(old, counts, strict=True)], sum_of_old + seconds
    else:
        into[key] = list(counts), seconds
