"""A version of a model that answers requests: executors, engines and signatures, loaded, proven and warm. Immutable."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.bundle import naming, reader
from tfctr.core import library
from tfctr.errors import CorruptFileError, NotFoundError, UsageError
from tfctr.serving import proving, warmup
from tfctr.serving.executors import Executors, load_executors
from tfctr.serving.group_options import GroupOptions
from tfctr.serving.model_folder import find_model, unknown_op
from tfctr.serving.signature_handle import SignatureHandle
from tfctr.serving.turns import short_switches

_log = logging.getLogger("tfctr")
Progress = Callable[[str], None]


class ServedVersion:
    """What :func:`load_version` makes. Thread-safe.

    Attributes:
      number: the version's.
      folder: where it was loaded from.
      manifest: of a bundle; None for a plain SavedModel.
      group: ``_native.Group``.
      signatures: name -> :class:`SignatureHandle`.
      options: what it was loaded with.
      executors: the loaded models, how their signatures are run, and what they cost.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        manifest: Mapping[str, Any] | None,
        options: GroupOptions,
        executors: Executors,
        group: Any,
        signatures: Mapping[str, SignatureHandle],
        warm: warmup.WarmUp | None,
        load_seconds: float,
    ) -> None:
        self.number = number
        self.folder = folder
        self.manifest = manifest
        self.options = options
        self.group = group
        self.signatures = signatures
        self.warm_up = warm
        self.load_seconds = load_seconds
        self.loaded_at = time.time()
        self.executors = executors
        self._closing = threading.Lock()
        self._closed = False

    def signature(self, name: str) -> SignatureHandle:
        """NotFoundError, saying what there is, for a signature that it does not have."""
        found = self.signatures.get(name)
        if found is None:
            there = ", ".join(self.signatures)
            model = _model(self.options, self.number) or self.folder
            raise NotFoundError(f"{model}: no signature {name!r}; there is: {there}")
        return found

    def describe(self) -> dict[str, Any]:
        """``number``, ``folder``, ``executors`` [{runs, requests, rows, busy_ns, failures, running, own_bytes: what the
        process grew by when it was loaded}], ``shared`` {tables, table_bytes: mapped once for all, table_memory,
        engines, blob_bytes: of engines' files}, ``signatures``, ``dense`` by signature, ``devices``, ``routing``,
        ``queue``, ``warm_up``, ``load_seconds``."""
        told = self.group.describe()
        executors = [
            {**counts, "own_bytes": own}
            for counts, own in zip(told["executors"], self.executors.own_bytes, strict=True)
        ]
        return {
            "number": self.number,
            "folder": str(self.folder),
            "executors": executors,
            "shared": self._shared(),
            "signatures": {name: handle.describe() for name, handle in self.signatures.items()},
            "dense": {name: _dense(tower) for name, tower in self.executors.towers.items()},
            "devices": dict(self.executors.devices),
            "routing": self.options.routing,
            "queue": {"waiting": told["waiting"], "limit": self.options.queue_limit},
            "warm_up": None if self.warm_up is None else self.warm_up.describe(),
            "load_seconds": self.load_seconds,
        }

    def _shared(self) -> dict[str, Any]:
        """What all executors use together: files of the store are mapped, not copied."""
        files = [] if self.manifest is None else self.manifest["store"]["files"]
        tables = [one for one in files if one["kind"] != "blob"]
        engines = [one for one in files if one["kind"] == "blob"]
        return {
            "tables": len(tables),
            "table_bytes": sum(one["bytes"] for one in tables),
            "table_memory": self.options.table_memory or "mapped",
            "engines": sum(len(tower.engines) for tower in self.executors.towers.values()),
            "blob_bytes": sum(one["bytes"] for one in engines),
        }

    def metrics(self) -> dict[str, Any]:
        """What the group counted, and ``dense``: by signature, which engine runs its tower; see docs/monitoring.md."""
        dense = {name: tower.choice() for name, tower in self.executors.towers.items()}
        return {**self.group.metrics(), "dense": dense}

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, drain_s: float = 30.0) -> bool:
        """Takes no new requests, waits at most ``drain_s`` for those inside, then lets go of the model. Whether all
        had been answered. Further calls do nothing."""
        with self._closing:
            if self._closed:
                return True
            self._closed = True
            drained = bool(self.group.close(int(drain_s * 1e9)))
            for tower in self.executors.towers.values():
                tower.close()
            self.executors = dataclasses.replace(self.executors, models=())
            return drained


def _dense(tower: Any) -> dict[str, Any]:
    told = tower.describe({"plain": 0, "split": 0})
    told.pop("calls")
    return dict(told)


def load_version(
    folder: str | Path,
    number: int,
    options: GroupOptions | None = None,
    *,
    progress: Progress | None = None,
    manifest: Mapping[str, Any] | None = None,
    store_paths: Sequence[Path] | None = None,
) -> ServedVersion:
    """Loads the model in ``folder`` for every executor, opens its engines, shows which signatures may batch, and warms
    every executor. What takes long runs in C++, at low priority and without the GIL.

    manifest, store_paths: of a version that is made in memory; None: as they lie in the folder.

    Raises: as :class:`tfctr.ServingSession`; UsageError for recorded warm-up requests that don't fit.
    """
    options = options or GroupOptions()
    start = time.perf_counter()
    path = find_model(folder)
    library.load()
    library.load_op_libraries(options.op_libraries)
    library.check_isa()
    tell = progress or (lambda _: None)
    with short_switches():
        if manifest is None and naming.is_bundle(path):
            manifest = reader.open_bundle(path).manifest
        elif manifest is None and (path / naming.STORE_FOLDER).is_dir():
            raise CorruptFileError(f"{path}: has a bundle's {naming.STORE_FOLDER}, but no {naming.MANIFEST}")
        model = _model(options, number)
        executors = load_executors(path, manifest, options, str(path), store_paths, tell, model)
        group = _group(executors, options, str(path))
        try:
            handles = _signatures(group, executors, manifest, options, str(path), tell)
            warm = None
            if options.warm_up:
                warm = warmup.warm_up(
                    str(path),
                    path,
                    handles,
                    options.executors,
                    writes_state=warmup.writes_state(manifest),
                    progress=tell,
                )
        except BaseException:
            group.close(0)
            raise
    seconds = round(time.perf_counter() - start, 3)
    return ServedVersion(number, path, manifest, options, executors, group, handles, warm, seconds)


def _model(options: GroupOptions, number: int) -> str:
    """What requests know the version by; "" where it has no name."""
    return f"model '{options.model_name}' version {number}" if options.model_name else ""


def _group(executors: Executors, options: GroupOptions, where: str) -> Any:
    try:
        return library.native().Group(list(executors.models), options.native())
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _signatures(
    group: Any,
    executors: Executors,
    manifest: Mapping[str, Any] | None,
    options: GroupOptions,
    where: str,
    tell: Progress,
) -> dict[str, SignatureHandle]:
    entries = {} if manifest is None else manifest["signatures"]
    made = {}
    for name in executors.prepared:
        tell(f"signature {name}")
        handle = _signature(group, executors, name, entries.get(name, {}), options, where)
        if handle.batching:
            handle = _proven(group, executors, handle, manifest, options, where)
        made[name] = handle
    return made


def _proven(
    group: Any,
    executors: Executors,
    handle: SignatureHandle,
    manifest: Mapping[str, Any] | None,
    options: GroupOptions,
    where: str,
) -> SignatureHandle:
    """The same handle where rows don't know of each other, else one that runs every request by itself."""
    reason = "the graph writes tables when it runs" if warmup.writes_state(manifest) else proving.why_not(handle)
    if not reason:
        return handle
    _log.warning("%s: signature %r: every request runs by itself: %s", where, handle.name, reason)
    return _signature(group, executors, handle.name, handle.entry, options, where, reason)


def _signature(
    group: Any,
    executors: Executors,
    name: str,
    entry: Mapping[str, Any],
    options: GroupOptions,
    where: str,
    reason: str = "",
) -> SignatureHandle:
    """reason: why its requests run one by one, although the group batches."""
    made = executors.prepared[name]
    serve_failed = library.native().ServeFailed
    batching = options.batching is not None and not reason
    try:
        try:
            native = group.signature(name, made.description, batching, options.max_rows if batching else 0)
        except serve_failed as failure:
            if not batching or failure.code != "INVALID_ARGUMENT":
                raise
            reason, batching = failure.message, False
            _log.warning("%s: signature %r: every request runs by itself: %s", where, name, reason)
            native = group.signature(name, made.description, False, 0)
    except serve_failed as failure:
        damaged = CorruptFileError(f"{where}: signature {name!r}: {failure.message}")
        raise unknown_op(where, failure.message) or damaged from failure
    return SignatureHandle(
        name=name,
        native=native,
        inputs=made.info.inputs,
        features=made.features,
        outputs=made.outputs,
        definition=executors.definitions[name],
        packed=made.packed,
        dense_only=made.dense_only,
        user_features=made.users.features if made.users else (),
        row_to_user=made.users.row_to_user if made.users else None,
        optional_inputs=frozenset(native.optional_inputs),
        batching=batching,
        batching_reason=reason or ("" if batching else "not asked for"),
        entry=entry,
    )
