"""What KServe's protocol says about models: metadata, configuration, statistics, the repository.

Plain dictionaries of the protocol's fields, which gRPC makes messages of and HTTP makes JSON of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfctr.serving.server.kserve_protos import config_type, datatype
from tfctr.serving.server.model_choice import kserve_signature
from tfctr.serving.signature_info import Input, Output

PLATFORM = "tensorflow_savedmodel"
"""Triton's name of what this server runs."""

READY = "AVAILABLE"
_STATES = {"AVAILABLE": "READY", "START": "LOADING", "LOADING": "LOADING", "UNLOADING": "UNLOADING"}


def model_ready(manager: Any, model: str, version: int | None, label: str | None) -> bool:
    """Whether a request for this would find a version. NotFoundError: there is no such model."""
    (status,) = manager.status(model, describe=False)
    ready = {one.number for one in status.versions if one.state == READY}
    if label is not None:
        version = status.labels.get(label)
        return version in ready
    return bool(ready) if version is None else version in ready


def model_metadata(manager: Any, model: str, served: Any) -> dict[str, Any]:
    """name, versions, platform, inputs and outputs of what KServe requests without a signature run."""
    _, handle = kserve_signature(model, served, {})
    (status,) = manager.status(model, describe=False)
    return {
        "name": model,
        "versions": [str(number) for number in sorted(one.number for one in status.versions if one.state == READY)],
        "platform": PLATFORM,
        "inputs": [_tensor(one.name, one.dtype, one.shape) for one in handle.inputs],
        "outputs": [_tensor(name, one.dtype, one.shape) for name, one in output_tensors(handle.outputs)],
    }


def output_tensors(outputs: Iterable[Output]) -> Iterator[tuple[str, Input]]:
    """(name, what it is) of every tensor that a reply holds; a sparse or ragged output has several."""
    for output in outputs:
        for role, part in output.parts.items():
            name = output.name if output.kind == "dense" else f"{output.name}/{role}"
            yield name, part


def _tensor(name: str, dtype: str, shape: tuple[int, ...] | None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype(dtype), "shape": [-1] if shape is None else list(shape)}


def model_config(model: str, served: Any) -> dict[str, Any]:
    """As Triton describes a model; max_batch_size 0: shapes are whole, with their batch dimension."""
    _, handle = kserve_signature(model, served, {})
    return {
        "name": model,
        "platform": PLATFORM,
        "backend": "tensorflow",
        "max_batch_size": 0,
        "input": [_config(one.name, one.dtype, one.shape) for one in handle.inputs],
        "output": [_config(name, one.dtype, one.shape) for name, one in output_tensors(handle.outputs)],
    }


def _config(name: str, dtype: str, shape: tuple[int, ...] | None) -> dict[str, Any]:
    return {"name": name, "data_type": config_type(dtype), "dims": [-1] if shape is None else list(shape)}


def model_statistics(model: str, served: Any) -> dict[str, Any]:
    """Counts and times of one version since it was loaded."""
    counted = served.metrics()
    stages = counted["histograms"]
    answers: Mapping[str, int] = counted["requests"]
    good = int(answers.get("OK", 0))
    bad = sum(int(count) for code, count in answers.items() if code != "OK")
    compute_input = _duration(stages, "parse", "pack")
    return {
        "name": model,
        "version": str(served.number),
        "inference_count": int(sum(int(one["rows"]) for one in counted["executors"])),
        "execution_count": int(sum(int(one["runs"]) for one in counted["executors"])),
        "inference_stats": {
            "success": {"count": good, "ns": _nanoseconds(stages, "request")},
            "fail": {"count": bad, "ns": 0},
            "queue": _duration(stages, "queue"),
            "compute_input": compute_input,
            "compute_infer": _duration(stages, "run"),
            "compute_output": _duration(stages, "reply"),
        },
    }


def _nanoseconds(stages: Mapping[str, Any], *names: str) -> int:
    return round(sum(float(stages[name]["sum"]) for name in names if name in stages) * 1e9)


def _duration(stages: Mapping[str, Any], *names: str) -> dict[str, int]:
    counts = [sum(stages[name]["counts"]) for name in names if name in stages]
    return {"count": int(max(counts, default=0)), "ns": _nanoseconds(stages, *names)}


def repository_index(manager: Any, only_ready: bool) -> list[dict[str, str]]:
    """Every version of every model that the server knows: name, version, state and why it is not ready."""
    return [
        {
            "name": status.name,
            "version": str(one.number),
            "state": _STATES.get(one.state, "UNAVAILABLE"),
            "reason": one.error or "",
        }
        for status in manager.status(describe=False)
        for one in status.versions
        if one.state == READY or not only_ready
    ]
