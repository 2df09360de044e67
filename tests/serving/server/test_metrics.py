"""Metrics: names, buckets and labels as Prometheus reads them; counts survive versions; nothing grows without bound."""

import dataclasses
import io
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from tfctr.serving.server import metrics as server_metrics
from tfctr.serving.server.logs import RequestLog
from tfctr.serving.server.metrics import EDGES_S, RETIRE_AFTER_S, Metrics
from tfctr.serving.server.metrics_models import Growing, cumulative


@dataclasses.dataclass
class Version:
    number: int
    state: str = "AVAILABLE"
    error: str | None = None
    loaded_at: float | None = 1e9


@dataclasses.dataclass
class Status:
    name: str
    versions: list[Version]
    labels: dict[str, int]


def counted(scale: int = 1) -> dict[str, Any]:
    """As Group.metrics() has it."""

    def histogram(*counts):
        return {"buckets": [0.001, 0.01], "counts": [scale * one for one in counts], "sum": 0.5 * scale}

    return {
        "histograms": {
            stage: histogram(1, 2, 3)
            for stage in ("request", "parse", "queue", "pack", "lookup", "dense", "run", "reply")
        },
        "requests": {"OK": 5 * scale, "DEADLINE_EXCEEDED": scale},
        "batch_rows": {"buckets": [1, 8], "counts": [scale, 0, scale], "sum": 100 * scale},
        "batch_requests": {"buckets": [1, 2], "counts": [scale, scale, 0], "sum": 3 * scale},
        "tables": {"emb/user": {"lookups": 100 * scale, "default_rows": 7 * scale}},
        "dense": {
            "serving_default": {
                "asked": "tensorrt",
                "running": "openvino",
                "precision": "fp32",
                "fallback": True,
                "reason": "no\nGPU",
            },
        },
        "executors": [
            {"runs": 4 * scale, "rows": 40 * scale, "busy_ns": 2_000_000_000 * scale, "failures": 1, "running": True},
            {"runs": 2 * scale, "rows": 20 * scale, "busy_ns": 1_000_000_000 * scale, "failures": 0, "running": False},
        ],
    }


class Models:
    names = ("ranker",)

    def __init__(self) -> None:
        self.versions = {("ranker", 3): counted()}
        self.failures = {"ranker": 2}

    def loaded(self):
        return set(self.versions)

    def groups(self):
        return [(model, version, one) for (model, version), one in self.versions.items()]

    def statuses(self):
        broken = Version(4, "END", "assets/table: bad\nchecksum", None)
        return [Status("ranker", [Version(3), broken], {"stable": 3})]

    def load_failures(self):
        return self.failures


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    kind, body = metrics.render()
    assert kind.startswith("text/plain")
    made = {}
    for family in parser.text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in made, f"{key} twice"
            made[key] = sample.value
    return made


def value(samples, name, **labels) -> float:
    return samples[name, tuple(sorted((key, str(one)) for key, one in labels.items()))]


def test_models_executors_tables_and_versions_are_told():
    """Triton #2685, #3060, #7672: summaries of several servers can't be taken together, buckets can."""
    samples = scraped(Metrics(Models(), ready=lambda: True))
    model = {"model": "ranker", "version": 3}
    for stage in ("request", "queue", "pack", "lookup", "dense", "reply"):
        bucket = [
            value(samples, "tfctr_stage_seconds_bucket", **model, stage=stage, le=le)
            for le in ("0.001", "0.01", "+Inf")
        ]
        assert bucket == [1, 3, 6]
        assert value(samples, "tfctr_stage_seconds_count", **model, stage=stage) == 6
        assert value(samples, "tfctr_stage_seconds_sum", **model, stage=stage) == 0.5
    assert value(samples, "tfctr_group_requests_total", **model, code="DEADLINE_EXCEEDED") == 1
    assert value(samples, "tfctr_batch_rows_bucket", **model, le="8.0") == 1
    assert value(samples, "tfctr_batch_requests_sum", **model) == 3
    assert value(samples, "tfctr_executor_busy_seconds_total", **model, executor=1) == 1
    assert value(samples, "tfctr_executor_running", **model, executor=0) == 1
    assert value(samples, "tfctr_executor_failures_total", **model, executor=0) == 1
    assert value(samples, "tfctr_table_lookups_total", **model, table="emb/user") == 100
    engine = {"signature": "serving_default", "asked": "tensorrt", "running": "openvino", "precision": "fp32"}
    assert value(samples, "tfctr_dense_engine", **model, **engine, fallback="true", reason="no GPU") == 1
    assert value(samples, "tfctr_table_default_rows_total", **model, table="emb/user") == 7
    assert value(samples, "tfctr_version_state", **model, state="AVAILABLE") == 1
    assert value(samples, "tfctr_version_rejected", model="ranker", version=4, reason="assets/table: bad checksum") == 1
    assert value(samples, "tfctr_version_label", **model, label="stable") == 1
    assert value(samples, "tfctr_load_failures_total", model="ranker") == 2
    assert value(samples, "tfctr_ready") == 1
    assert value(samples, "process_resident_memory_bytes") > 1e6 and value(samples, "process_cpu_seconds_total") > 0


def test_requests_are_counted_under_our_names_and_tf_servings():
    metrics = Metrics(Models())
    metrics.answered("grpc", "tfs", "Predict", "ranker", 3, "OK", 0.0021)
    metrics.answered("grpc", "tfs", "Predict", "ranker", 3, "OK", 100.0)
    metrics.answered("http", "tfs", "Predict", "ranker", None, "INVALID_ARGUMENT", 0.0001)
    metrics.answered("http", "kserve", "ModelInfer", "ranker", 3, "OK", 0.003)
    samples = scraped(metrics)
    path = {"transport": "grpc", "api": "tfs", "method": "Predict", "model": "ranker", "version": 3}
    assert value(samples, "tfctr_requests_total", **path, code="OK") == 2
    assert value(samples, "tfctr_request_seconds_bucket", **path, le="0.002") == 0
    assert value(samples, "tfctr_request_seconds_bucket", **path, le="0.003") == 1
    assert value(samples, "tfctr_request_seconds_bucket", **path, le="+Inf") == 2
    assert value(samples, "tfctr_request_seconds_sum", **path) == pytest.approx(100.0021)
    refused = {**path, "transport": "http", "version": ""}
    assert value(samples, "tfctr_requests_total", **refused, code="INVALID_ARGUMENT") == 1
    assert value(samples, "tfctr_request_seconds_bucket", **refused, le="0.0001") == 1, "edges belong to their bucket"
    assert value(samples, ":tensorflow:serving:request_count", model_name="ranker", status="OK") == 2
    latency = {"model_name": "ranker", "API": "predict", "entrypoint": "GRPC"}
    assert value(samples, ":tensorflow:serving:request_latency_bucket", **latency, le="3000.0") == 1
    assert value(samples, ":tensorflow:serving:request_latency_count", **latency) == 2
    run = {"model_name": "ranker", "API": "predict", "runtime": "TF1"}
    assert value(samples, ":tensorflow:serving:runtime_latency_bucket", **run, le="10000.0") == 3
    queue = ":tensorflow:serving:batching_session:queuing_latency_sum"
    assert value(samples, queue, thread_pool_name="ranker") == 5e5
    assert value(samples, ":tensorflow:core:graph_runs") == 6
    assert value(samples, ":tensorflow:core:graph_run_time_usecs") == 3e6


def test_counts_under_tf_servings_names_outlive_their_version():
    models, clock = Models(), Clock()
    metrics = Metrics(models, clock=clock)
    metrics.answered("grpc", "tfs", "Predict", "ranker", 3, "OK", 0.001)
    scraped(metrics)
    models.versions = {("ranker", 4): counted(2)}
    metrics.answered("grpc", "tfs", "Predict", "ranker", 4, "OK", 0.001)
    both = scraped(metrics)
    clock.now += RETIRE_AFTER_S + 1
    metrics.answered("grpc", "tfs", "Predict", "ranker", 4, "OK", 0.001)
    after = scraped(metrics)
    path = {"transport": "grpc", "api": "tfs", "method": "Predict", "model": "ranker", "code": "OK"}
    assert value(both, "tfctr_requests_total", **path, version=3) == 1
    assert not [key for key in after if ("version", "3") in key[1] and key[0] == "tfctr_requests_total"]
    for samples, count in ((both, 2), (after, 3)):
        assert value(samples, ":tensorflow:serving:request_count", model_name="ranker", status="OK") == count
        assert value(samples, ":tensorflow:core:graph_runs") == 6 + 12
    models.versions = {("ranker", 4): counted()}  # the same number, loaded anew: counts begin at zero
    assert value(scraped(metrics), ":tensorflow:core:graph_runs") == 6 + 12 + 6


def test_growing_sums_never_shrink():
    growing, seen = Growing(), []
    one = {"run": {"buckets": [1], "counts": [5, 1], "sum": 2.0}}
    for parts in ({1: one}, {1: one, 2: one}, {2: one}, {}, {2: one}):
        seen.append(growing.update(parts)["run"]["counts"][0])
    assert seen == [5, 10, 10, 10, 15]


def test_series_have_a_limit(monkeypatch):
    monkeypatch.setattr(server_metrics, "MOST_SERIES", 3)
    metrics = Metrics()
    for number in range(10):
        metrics.answered("grpc", "tfs", "Predict", f"m{number}", 1, "OK", 0.001)
    samples = scraped(metrics)
    path = {"transport": "grpc", "api": "tfs", "method": "Predict", "code": "OK"}
    assert value(samples, "tfctr_requests_total", **path, model="other", version="") == 7
    assert len([key for key in samples if key[0] == "tfctr_requests_total"]) == 4


def test_names_that_nobody_serves_are_counted_together():
    metrics = Metrics(Models())
    for number in range(50):
        metrics.answered("http", "tfs", "Predict", f"stranger{number}", None, "NOT_FOUND", 0.001)
    found = [(dict(key[1]), count) for key, count in scraped(metrics).items() if key[0] == "tfctr_requests_total"]
    assert [(labels["model"], count) for labels, count in found] == [("", 50)]


def test_labels_are_escaped():
    metrics = Metrics()
    metrics.answered("http", "tfs", "Predict", 'a"} 1\nevil 2\\', 1, "OK", 0.001)
    assert [dict(key[1])["model"] for key in scraped(metrics) if key[0] == "tfctr_requests_total"] == [
        'a"} 1\nevil 2\\'
    ]


def test_nothing_is_lost_between_threads():
    metrics = Metrics()

    def many():
        for _ in range(2000):
            metrics.answered("grpc", "tfs", "Predict", "m", 1, "OK", 0.001)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        metrics.render()
    for thread in threads:
        thread.join()
    assert value(scraped(metrics), ":tensorflow:serving:request_count", model_name="m", status="OK") == 8000


def test_off_means_no_request_is_counted():
    """Triton #8561: what counting costs can be saved (``benchmarks/bench_serving_metrics.py`` measures it)."""
    metrics = Metrics(Models(), enabled=False)
    metrics.answered("grpc", "tfs", "Predict", "m", 1, "OK", 0.001)
    samples = scraped(metrics)
    assert not [key for key in samples if key[0] == "tfctr_requests_total"]
    assert value(samples, "process_resident_memory_bytes") > 0 and value(samples, "tfctr_ready") == 0


def test_buckets_add_up():
    made = cumulative([0.1, 0.30000000000000004], [1, 0, 2])
    assert made == [("0.1", 1.0), ("0.3", 1.0), ("+Inf", 3.0)]
    assert list(EDGES_S) == sorted(set(EDGES_S))


def dashboard_names(dashboard: Path) -> set[str]:
    """Every metric that an expression, a variable or an annotation of the dashboard asks for."""
    found = set()

    def walk(node):
        if isinstance(node, dict):
            for key, one in node.items():
                if key in ("expr", "definition") or key == "query" and isinstance(one, str):
                    found.update(re.findall(r"(?<![\w:])(?:tfctr|process|:tensorflow)[\w:]*", one))
                walk(one)
        elif isinstance(node, list):
            for one in node:
                walk(one)

    walk(json.loads(dashboard.read_text()))
    return found


def exported() -> tuple[set[str], set[str]]:
    """(names of samples, names of families with their type's suffix) of a server that has seen everything."""
    log = RequestLog(stream=io.StringIO())
    metrics = Metrics(Models(), log=log, ready=lambda: True)
    metrics.answered("grpc", "tfs", "Predict", "ranker", 3, "OK", 0.0021)
    _, body = metrics.render()
    log.close()
    families = list(parser.text_string_to_metric_families(body.decode()))
    return {sample.name for one in families for sample in one.samples}, set(
        re.findall(r"^# TYPE (\S+) ", body.decode(), re.M)
    )


def test_the_dashboard_asks_for_what_is_exported(repo_root):
    names = dashboard_names(repo_root / "docs/monitoring/grafana.json")
    samples, _ = exported()
    assert len(names) > 20 and names - samples == set()


def test_the_documentation_lists_what_is_exported(repo_root):
    text = (repo_root / "docs/monitoring.md").read_text()
    listed = set(re.findall(r"^\| `((?:tfctr_|process_|:tensorflow)[\w:]*)", text, re.M))
    _, families = exported()
    assert listed == families
