"""What the models' executors counted in C++, as Prometheus families: stages, batches, executors, tables, versions.

Read at scrape time only. A version that is closed while it is read is left out of that scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import core
from prometheus_client.utils import floatToGoString

_LABELS = ["model", "version"]
_REASON = 200  # characters of a reason that become a label

Group = tuple[str, int, Mapping[str, Any]]


class Models(Protocol):
    """What metrics need to know of the models that are served."""

    @property
    def names(self) -> Collection[str]:
        """All models that are served, loaded or not."""

    def loaded(self) -> set[tuple[str, int]]:
        """(model, version) of all that are loaded."""

    def groups(self) -> Iterable[Group]:
        """(model, version, what ``Group.metrics()`` of it says) of all that are loaded."""

    def statuses(self) -> Iterable[Any]:
        """ModelStatus of every model."""

    def load_failures(self) -> Mapping[str, int]:
        """Model -> loads that failed since the start."""


class ModelFamilies:
    """Makes the families of one server; one scrape at a time."""

    def __init__(self) -> None:
        self._totals: dict[str, Growing] = {}

    def collect(self, models: Models | None) -> Iterator[core.Metric]:
        groups = [] if models is None else list(models.groups())
        if models is not None:
            yield from _versions(models)
        yield from _stages(groups)
        yield from _batches(groups)
        yield from _executors(groups)
        yield from _tables(groups)
        yield from _engines(groups)
        yield from self._tf_serving(groups)

    def _tf_serving(self, groups: Sequence[Group]) -> Iterator[core.Metric]:
        """TF Serving's names: microseconds, no version, so that counts outlive the versions that made them."""
        for name in {model for model, _, _ in groups} - self._totals.keys():
            self._totals[name] = Growing()
        run = _histogram_family(
            ":tensorflow:serving:runtime_latency", "Microseconds in the graph", "model_name", "API", "runtime"
        )
        queue = _histogram_family(
            ":tensorflow:serving:batching_session:queuing_latency", "Microseconds in the queue", "thread_pool_name"
        )
        runs = core.UnknownMetricFamily(":tensorflow:core:graph_runs", "Runs of a graph")
        micros = core.UnknownMetricFamily(":tensorflow:core:graph_run_time_usecs", "Microseconds in graphs")
        all_runs = all_micros = 0.0
        for name, total in sorted(self._totals.items()):
            mine = {version: _tfs_parts(counted) for model, version, counted in groups if model == name}
            now = total.update(mine)
            if not now:
                continue
            _add_histogram(run, [name, "predict", "TF1"], now["run"], scale=1e6)
            _add_histogram(queue, [name], now["queue"], scale=1e6)
            all_runs += now["executors"]["counts"][0]
            all_micros += now["executors"]["sum"] * 1e6
        runs.add_metric([], all_runs)
        micros.add_metric([], all_micros)
        yield from (run, queue, runs, micros)


class Growing:
    """Sums histograms of versions that come and go; the sum never shrinks."""

    def __init__(self) -> None:
        self._last: dict[Any, dict[str, Any]] = {}
        self._gone: dict[str, Any] = {}

    def update(self, parts: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
        """Takes what each version says now (name -> {"buckets", "counts", "sum"}); returns the sums so far."""
        for version, before in self._last.items():
            now = parts.get(version)
            began_anew = now is not None and any(
                sum(now[name]["counts"]) < sum(one["counts"]) for name, one in before.items()
            )
            if now is None or began_anew:
                self._gone = _sums(self._gone, before)
        self._last = {version: dict(one) for version, one in parts.items()}
        made = self._gone
        for one in self._last.values():
            made = _sums(made, one)
        return made


def _sums(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(one)
    for name, part in other.items():
        old = made.get(name)
        counts = part["counts"] if old is None else [a + b for a, b in zip(old["counts"], part["counts"], strict=True)]
        made[name] = {
            "buckets": part["buckets"],
            "counts": list(counts),
            "sum": part["sum"] + (old["sum"] if old else 0.0),
        }
    return made


def _tfs_parts(counted: Mapping[str, Any]) -> dict[str, Any]:
    executors = counted["executors"]
    return {
        "run": counted["histograms"]["run"],
        "queue": counted["histograms"]["queue"],
        "executors": {
            "buckets": [],
            "counts": [sum(one["runs"] for one in executors)],
            "sum": sum(one["busy_ns"] for one in executors) / 1e9,
        },
    }


def _stages(groups: Sequence[Group]) -> Iterator[core.Metric]:
    stages = _histogram_family(
        "tfctr_stage_seconds",
        "Time of one request in each stage; request: all of them",
        *_LABELS,
        "stage",
    )
    ended = core.CounterMetricFamily(
        "tfctr_group_requests", "Requests that reached the executors", labels=[*_LABELS, "code"]
    )
    for model, version, counted in groups:
        for stage, one in counted["histograms"].items():
            _add_histogram(stages, [model, str(version), stage], one)
        for code, count in counted["requests"].items():
            ended.add_metric([model, str(version), code], count)
    yield from (stages, ended)


def _batches(groups: Sequence[Group]) -> Iterator[core.Metric]:
    rows = _histogram_family("tfctr_batch_rows", "Rows of one run", *_LABELS)
    requests = _histogram_family("tfctr_batch_requests", "Requests of one run", *_LABELS)
    for model, version, counted in groups:
        _add_histogram(rows, [model, str(version)], counted["batch_rows"])
        _add_histogram(requests, [model, str(version)], counted["batch_requests"])
    yield from (rows, requests)


def _executors(groups: Sequence[Group]) -> Iterator[core.Metric]:
    labels = [*_LABELS, "executor"]
    runs = core.CounterMetricFamily("tfctr_executor_runs", "Runs of the graph", labels=labels)
    rows = core.CounterMetricFamily("tfctr_executor_rows", "Rows that were computed", labels=labels)
    busy = core.CounterMetricFamily(
        "tfctr_executor_busy_seconds", "Seconds of running; its rate is the load", labels=labels
    )
    failures = core.CounterMetricFamily("tfctr_executor_failures", "Runs that failed", labels=labels)
    running = core.GaugeMetricFamily("tfctr_executor_running", "1: it runs a batch now", labels=labels)
    for model, version, counted in groups:
        for number, one in enumerate(counted["executors"]):
            values = [model, str(version), str(number)]
            runs.add_metric(values, one["runs"])
            rows.add_metric(values, one["rows"])
            busy.add_metric(values, one["busy_ns"] / 1e9)
            failures.add_metric(values, one["failures"])
            running.add_metric(values, float(one["running"]))
    yield from (runs, rows, busy, failures, running)


def _tables(groups: Sequence[Group]) -> Iterator[core.Metric]:
    labels = [*_LABELS, "table"]
    lookups = core.CounterMetricFamily("tfctr_table_lookups", "Ids that were looked up", labels=labels)
    defaults = core.CounterMetricFamily(
        "tfctr_table_default_rows", "Ids that the table does not have: they got its default row", labels=labels
    )
    for model, version, counted in groups:
        for table, one in counted["tables"].items():
            lookups.add_metric([model, str(version), table], one["lookups"])
            defaults.add_metric([model, str(version), table], one["default_rows"])
    yield from (lookups, defaults)


def _engines(groups: Sequence[Group]) -> Iterator[core.Metric]:
    labels = [*_LABELS, "signature", "asked", "running", "precision", "fallback", "reason"]
    engine = core.GaugeMetricFamily(
        "tfctr_dense_engine", "1: what runs the dense tower; fallback: not what the bundle or the options ask for",
        labels=labels,
    )  # fmt: skip
    for model, version, counted in groups:
        for signature, one in counted["dense"].items():
            reason = " ".join(str(one["reason"]).split())[:_REASON]
            chosen = [one["asked"], one["running"], one["precision"], str(one["fallback"]).lower(), reason]
            engine.add_metric([model, str(version), signature, *chosen], 1)
    yield engine


def _versions(models: Models) -> Iterator[core.Metric]:
    state = core.GaugeMetricFamily(
        "tfctr_version_state", "1 for the state that a version is in", labels=[*_LABELS, "state"]
    )
    since = core.GaugeMetricFamily("tfctr_version_loaded_at_seconds", "When it was loaded (Unix time)", labels=_LABELS)
    rejected = core.GaugeMetricFamily(
        "tfctr_version_rejected", "1: this version could not be loaded, and why", labels=[*_LABELS, "reason"]
    )
    labels = core.GaugeMetricFamily(
        "tfctr_version_label", "1: the label stands for this version", labels=[*_LABELS, "label"]
    )
    failures = core.CounterMetricFamily("tfctr_load_failures", "Loads of versions that failed", labels=["model"])
    for status in models.statuses():
        for one in status.versions:
            values = [status.name, str(one.number)]
            state.add_metric([*values, one.state], 1)
            if one.error:
                rejected.add_metric([*values, " ".join(str(one.error).split())[:_REASON]], 1)
            if one.loaded_at:
                since.add_metric(values, one.loaded_at)
        for label, version in status.labels.items():
            labels.add_metric([status.name, str(version), label], 1)
    for model, count in models.load_failures().items():
        failures.add_metric([model], count)
    yield from (state, since, rejected, labels, failures)


def _histogram_family(name: str, words: str, *labels: str) -> core.HistogramMetricFamily:
    return core.HistogramMetricFamily(name, words, labels=list(labels))


def _add_histogram(family: Any, values: list[str], one: Mapping[str, Any], scale: float = 1.0) -> None:
    """``one``: {"buckets": upper edges, "counts": requests of each bucket, the open one last, "sum"}."""
    edges = [edge * scale for edge in one["buckets"]]
    family.add_metric(values, cumulative(edges, one["counts"]), sum_value=one["sum"] * scale)


def cumulative(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus buckets (upper edge, requests up to it) of counts per bucket, the open one last."""
    made, total = [], 0
    for edge, count in zip([*edges, float("inf")], counts, strict=True):
        total += count
        made.append((floatToGoString(float(f"{edge:.9g}")), float(total)))
    return made
