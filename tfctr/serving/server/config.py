"""What `tfctr serve` is told: a JSON file, options of the command line over it, TF Serving's model file beside it.

All of it ends in one frozen :class:`ServerConfig`. Units are in the names; paths of a file are relative to its folder.
"""

from __future__ import annotations

import copy
import dataclasses
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tfctr.errors import UsageError
from tfctr.serving.server import config_check
from tfctr.serving.server.limits import Limits
from tfctr.serving.server.tls import TlsOptions

MOST_EXECUTORS = 16
"""What "one executor for each CPU" stops at."""


@dataclasses.dataclass(frozen=True)
class GroupConfig:
    """Executors of one model. ``executors`` None: one for each ``intra_op_threads`` CPUs, 16 at most."""

    executors: int | None = None
    intra_op_threads: int = 1
    cpu_sets: tuple[tuple[int, ...], ...] = ()
    routing: Literal["least_loaded", "round_robin"] = "least_loaded"
    queue_limit: int = 1000
    engine: str | None = None
    fallback: bool = True
    table_memory: str | None = None

    def count(self) -> int:
        """How many executors that is on this machine."""
        if self.executors is not None:
            return self.executors
        if self.cpu_sets:
            return len(self.cpu_sets)
        return max(1, min(MOST_EXECUTORS, len(os.sched_getaffinity(0)) // self.intra_op_threads))


@dataclasses.dataclass(frozen=True)
class BatchingConfig:
    """Requests that are run together: up to ``max_batch_rows``; one waits ``max_delay_us`` at most, and only while
    others are in flight.
    """

    max_batch_rows: int = 1024
    max_delay_us: int = 0


@dataclasses.dataclass(frozen=True)
class TrafficConfig:
    """A split of the requests that name no version: by a hash of input ``field``, label or version -> weight."""

    field: str
    weights: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One model. ``versions``: {"latest": n}, "all", or the numbers."""

    name: str
    path: Path
    versions: Mapping[str, int] | Literal["all"] | tuple[int, ...] = dataclasses.field(
        default_factory=lambda: {"latest": 1}
    )
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    traffic: TrafficConfig | None = None
    group: GroupConfig = dataclasses.field(default_factory=GroupConfig)
    batching: BatchingConfig | None = None
    op_libraries: tuple[str, ...] = ()
    poll_seconds: float = 2.0
    accept_changed_inputs: bool = False


@dataclasses.dataclass(frozen=True)
class PortsConfig:
    """Where the server listens and for how long. A port of None is not opened, 0 is any free one."""

    host: str = "127.0.0.1"
    grpc_port: int | None = 8500
    http_port: int | None = 8501
    admin_host: str = "127.0.0.1"
    admin_port: int | None = 8502
    default_deadline_ms: float | None = None
    grpc_threads: int = 64
    http_threads: int = 64
    drain_seconds: float = 30.0
    lameduck_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class TokensConfig:
    """Files that hold one bearer token each."""

    serving_file: str | None = None
    admin_file: str | None = None


@dataclasses.dataclass(frozen=True)
class LogsConfig:
    """See docs/monitoring.md. ``file`` None: stderr."""

    file: str | None = None
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Literal["notable", "all"] = "notable"
    slow_ms: float | None = None
    lines_per_second: float = 20.0


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """``enabled`` False: /metrics has only what the process and the models say, nothing is counted per request."""

    enabled: bool = True


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """``every``: one request in so many of every model is traced from the start; None: none. ``folder``: below which
    files of profiles go; None: a temporary one. ``max_mb``: the most that one model's may take.
    """

    every: int | None = None
    folder: str | None = None
    max_mb: float = 100.0


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """Everything that `tfctr serve` is told."""

    models: tuple[ModelConfig, ...]
    server: PortsConfig = dataclasses.field(default_factory=PortsConfig)
    limits: Limits = dataclasses.field(default_factory=Limits)
    tls: TlsOptions | None = None
    tokens: TokensConfig = dataclasses.field(default_factory=TokensConfig)
    logs: LogsConfig = dataclasses.field(default_factory=LogsConfig)
    metrics: MetricsConfig = dataclasses.field(default_factory=MetricsConfig)
    profile: ProfileConfig = dataclasses.field(default_factory=ProfileConfig)
    op_libraries: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; no token is in it, only the files' names."""
        return _plain(dataclasses.asdict(self))


def build(
    *,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    model_dirs: Sequence[Path] = (),
    more_models: Sequence[ModelConfig] = (),
    name: str | None = None,
) -> ServerConfig:
    """Puts a configuration together.

    Args:
      file: JSON file, checked against ``config_schema.json``.
      overrides: same keys as the file's, without ``models``; what is here wins, over models of the file too.
      model_dirs: folders of models that the command line names.
      more_models: of TF Serving's model file; they get the file's defaults (``group``, ``poll_seconds``, ...).
      name: of the model in the one folder of ``model_dirs``; None: the folder's.

    Raises:
      UsageError: names the file, the key, what came and what was expected.
    """
    where = str(file) if file else "the options"
    raw = config_check.parse(config_check.read_text(file, "configuration"), where) if file else {}
    folder = file.parent if file else Path()
    extra = copy.deepcopy(dict(overrides or {}))
    config_check.check(extra, "the options")
    _rebase(raw, folder)
    entries = [dict(entry, path=str(folder / entry["path"])) for entry in raw.pop("models", [])]
    entries += [{"path": str(path), **({"name": name} if name else {})} for path in model_dirs]
    merged = _merged(raw, extra)
    models = [_model(entry, merged, extra) for entry in entries]
    models += [_with_defaults(one, merged) for one in more_models]
    if not models:
        raise UsageError(f"{where}: no model is named; give MODEL_DIR, or `models` in --config")
    made = ServerConfig(
        models=tuple(models),
        server=PortsConfig(**merged.get("server", {})),
        limits=Limits(**merged.get("limits", {})),
        tls=TlsOptions(**merged["tls"]) if merged.get("tls") else None,
        tokens=TokensConfig(**merged.get("tokens", {})),
        logs=LogsConfig(**merged.get("logs", {})),
        metrics=MetricsConfig(**merged.get("metrics", {})),
        profile=ProfileConfig(**merged.get("profile", {})),
        op_libraries=tuple(merged.get("op_libraries", ())),
    )
    _check(made, where)
    return made


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str | None) -> str | None:
    """The token of a file (surrounding white space is not part of it); None for no file."""
    if path is None:
        return None
    token = config_check.read_text(Path(path), "token file").strip()
    if not token:
        raise UsageError(f"{path}: the token file is empty")
    return token


def name_and_folder(path: Path) -> tuple[str, Path, tuple[int, ...]]:
    """Name of the model in folder ``path``, its base folder, and the version where ``path`` is one version of it.

    ``models/ranker`` is ``ranker``; so is ``models/ranker/3`` where it holds a saved_model.pb, with version 3 only.
    """
    full = Path(os.path.abspath(path))  # not resolved: a link has the name that it was given
    is_model = any((full / one).is_file() for one in ("saved_model.pb", "saved_model.pbtxt"))
    if full.name.isascii() and full.name.isdigit() and is_model:
        return full.parent.name, full.parent, (int(full.name),)
    return full.name, path, ()


def _model(entry: Mapping[str, Any], defaults: Mapping[str, Any], forced: Mapping[str, Any]) -> ModelConfig:
    path = Path(entry["path"])
    name, base, only = name_and_folder(path)
    versions = entry.get("versions", only or {"latest": 1})
    batching = entry["batching"] if "batching" in entry else defaults.get("batching")
    if "batching" in forced:
        batching = forced["batching"] if forced["batching"] is None else {**(batching or {}), **forced["batching"]}
    group = {**defaults.get("group", {}), **entry.get("group", {}), **forced.get("group", {})}
    traffic = entry.get("traffic")
    accepts = defaults.get("accept_changed_inputs", False)
    return ModelConfig(
        name=entry.get("name", name),
        path=base,
        versions=tuple(versions) if isinstance(versions, list | tuple) else versions,
        labels=dict(entry.get("labels", {})),
        traffic=TrafficConfig(traffic["field"], dict(traffic["weights"])) if traffic else None,
        group=_group(group),
        batching=None if batching is None else BatchingConfig(**batching),
        op_libraries=tuple(entry.get("op_libraries", ())),
        poll_seconds=forced.get("poll_seconds", entry.get("poll_seconds", _poll_seconds(defaults))),
        accept_changed_inputs=forced.get("accept_changed_inputs", entry.get("accept_changed_inputs", accepts)),
    )


def _with_defaults(model: ModelConfig, defaults: Mapping[str, Any]) -> ModelConfig:
    batching = defaults.get("batching")
    return dataclasses.replace(
        model,
        group=_group(defaults.get("group", {})),
        batching=None if batching is None else BatchingConfig(**batching),
        poll_seconds=_poll_seconds(defaults),
        accept_changed_inputs=defaults.get("accept_changed_inputs", False),
    )


def _poll_seconds(defaults: Mapping[str, Any]) -> float:
    return float(defaults.get("poll_seconds", ModelConfig.poll_seconds))


def _group(values: Mapping[str, Any]) -> GroupConfig:
    sets = tuple(tuple(one) for one in values.get("cpu_sets", ()))
    return GroupConfig(**{**values, "cpu_sets": sets})


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` wins, key by key inside objects; lists of op libraries are joined."""
    made = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(made.get(key), Mapping):
            made[key] = {**made[key], **value}
        elif key == "op_libraries":
            made[key] = [*made.get(key, ()), *value]
        else:
            made[key] = value
    return made


def _rebase(raw: dict[str, Any], folder: Path) -> None:
    """Paths of a file are relative to its folder."""
    for section, keys in (
        ("tls", ("certificate", "key", "client_ca")),
        ("tokens", ("serving_file", "admin_file")),
        ("logs", ("file",)),
        ("profile", ("folder",)),
    ):
        values = raw.get(section) or {}
        for key in keys:
            if values.get(key):
                values[key] = str(folder / values[key])
    for holder in (raw, *raw.get("models", ())):
        if "op_libraries" in holder:
            holder["op_libraries"] = [str(folder / one) for one in holder["op_libraries"]]


def _check(config: ServerConfig, where: str) -> None:
    """What a schema can't say."""
    names: dict[str, Path] = {}
    for model in config.models:
        config_check.check_name(model.name, f"{where}: {model.path}")
        if model.name in names:
            raise UsageError(f"{where}: model {model.name!r} is there twice: {names[model.name]} and {model.path}")
        names[model.name] = model.path
        _check_model(model, f"{where}: model {model.name!r}")
    ports = config.server
    if ports.grpc_port is None and ports.http_port is None:
        raise UsageError(f"{where}: neither a gRPC nor an HTTP port is open")
    if ports.admin_port is not None and not is_loopback(ports.admin_host) and not config.tokens.admin_file:
        raise UsageError(
            f"{where}: the admin port on {ports.admin_host} can be reached from other machines; that needs a token "
            "(--admin-token-file)"
        )
    given = [port for port in (ports.grpc_port, ports.http_port, ports.admin_port) if port]
    if len(set(given)) != len(given):
        raise UsageError(f"{where}: gRPC, HTTP and admin port are {given}; expected different ones")


def _check_model(model: ModelConfig, where: str) -> None:
    group = model.group
    if group.cpu_sets and group.executors not in (None, len(group.cpu_sets)):
        raise UsageError(f"{where}: {group.executors} executors, but {len(group.cpu_sets)} cpu_sets; one for each")
    here = os.sched_getaffinity(0)
    missing = sorted({cpu for one in group.cpu_sets for cpu in one} - here)
    if missing:
        raise UsageError(f"{where}: cpu_sets names CPU {missing[0]}; this process may use {sorted(here)}")
    if model.traffic:
        if not sum(model.traffic.weights.values()) > 0:
            raise UsageError(f"{where}: the weights of traffic are all 0")
        for key in model.traffic.weights:
            if not key.isdigit() and key not in model.labels:
                raise UsageError(f"{where}: traffic names label {key!r}{config_check.did_you_mean(key, model.labels)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
