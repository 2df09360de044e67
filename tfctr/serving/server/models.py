"""From the configuration to the models that are served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tfctr.serving.group_options import BatchingOptions, GroupOptions
from tfctr.serving.server.config import ModelConfig, ServerConfig
from tfctr.serving.versions import AVAILABLE, LOADING, All, Latest, ModelSpec, Specific, Traffic


def specs(config: ServerConfig) -> list[ModelSpec]:
    """What the manager is told of each model."""
    return [
        spec(
            model,
            drain_seconds=config.server.drain_seconds,
            metrics=config.metrics.enabled,
            max_rows=config.limits.max_rows,
        )
        for model in config.models
    ]


def spec(model: ModelConfig, *, drain_seconds: float, metrics: bool = True, max_rows: int = 0) -> ModelSpec:
    """One model. drain_seconds: how long an old version may take to finish what it has. max_rows: of one request."""
    group, batching = model.group, model.batching
    versions = model.versions
    if versions == "all":
        policy: Any = All()
    elif isinstance(versions, Mapping):
        policy = Latest(versions["latest"])
    else:
        policy = Specific(tuple(versions))  # type: ignore[arg-type]
    return ModelSpec(
        name=model.name,
        base_path=model.path,
        policy=policy,
        labels=dict(model.labels),
        options=GroupOptions(
            executors=group.count(),
            intra_op_threads=group.intra_op_threads,
            cpu_sets=group.cpu_sets,
            routing=group.routing,
            queue_limit=group.queue_limit,
            batching=None
            if batching is None
            else BatchingOptions(max_batch_rows=batching.max_batch_rows, max_delay_us=batching.max_delay_us),
            engine=group.engine,
            fallback=group.fallback,
            table_memory=group.table_memory,
            metrics=metrics,
            max_request_rows=max_rows,
        ),
        traffic=Traffic(model.traffic.field, dict(model.traffic.weights)) if model.traffic else None,
        op_libraries=model.op_libraries,
        poll_seconds=model.poll_seconds,
        drain_seconds=drain_seconds,
        accept_changed_inputs=model.accept_changed_inputs,
    )


def serves(status: Any) -> bool:
    """Whether a model has a version that answers."""
    return any(one.state == AVAILABLE for one in status.versions)


def why_not(status: Any, path: str = "") -> str:
    """Why a model has none. path: where it should be."""
    errors = [status.error] if status.error else []
    errors += [f"version {one.number} is being loaded" for one in status.versions if one.state == LOADING]
    errors += [f"version {one.number}: {one.error}" for one in status.versions if one.error]
    where = f" ({path})" if path else ""
    return f"model {status.name!r}{where} does not serve: {'; '.join(errors) or 'no version there'}"


def not_ready(statuses: Iterable[Any]) -> str:
    """Which models do not serve, and why; "" where all do."""
    return "; ".join(why_not(one) for one in statuses if not serves(one))
