"""Loads a version's model once for each executor, with all of its signatures and one choice of engines for all.

Tables are mapped once for the process, engines are shared; what each executor has for itself is its graph, its threads
and the memory of a run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.errors import CorruptFileError, UsageError
from tfctr.serving import dense_form, loaded
from tfctr.serving.devices import device_report
from tfctr.serving.group_options import GroupOptions
from tfctr.serving.model_folder import load_model

_log = logging.getLogger("tfctr")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executors:
    """models: native, one for each executor. towers: by signature. prepared: by signature. own_bytes: memory that the
    process grew by while each was loaded."""

    models: tuple[Any, ...]
    definitions: Mapping[str, meta_graph_pb2.SignatureDef]
    towers: Mapping[str, dense_form.DenseTower]
    prepared: Mapping[str, loaded.Prepared]
    devices: Mapping[str, Any]
    own_bytes: tuple[int, ...]


def load_executors(
    folder: Path,
    manifest: Mapping[str, Any] | None,
    options: GroupOptions,
    where: str,
    store_paths: Sequence[Path] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    model: str = "",
) -> Executors:
    """manifest: of a bundle, None for a plain SavedModel. store_paths: where the files of its store lie; None: where
    the manifest says. model: how errors of requests begin; "": with ``where``. Errors: as ServingSession."""
    described: Mapping[str, Any] = {} if manifest is None else manifest["signatures"]
    files = [] if manifest is None else manifest["store"]["files"]
    paths = [folder / str(file["file"]) for file in files] if store_paths is None else store_paths
    loader = _Loader(folder, options)
    progress("executor 0")
    before = anonymous_bytes()
    wanted = list(described) if options.signatures is None else [n for n in options.signatures if n in described]
    towers = _towers(where, described, wanted, options, loader, paths)
    own = [anonymous_bytes() - before]
    definitions = loaded.read_definitions(loader.first or loader({}))
    names = _names(where, definitions, described, options)
    prepared = {}
    for name in names:
        tower = towers.get(name) or _plain_tower(where, name, options, loader, paths)
        towers[name] = tower
        prepared[name] = loaded.prepare(
            folder, definitions, tower.applied(described.get(name, {})), _load_options(where, name, options, model)
        )
    models = [loader.first]
    for number in range(1, options.executors):
        progress(f"executor {number}")
        before = anonymous_bytes()
        models.append(loader.load(number, loader.choice))
        own.append(anonymous_bytes() - before)
    return Executors(
        models=tuple(models),
        definitions=definitions,
        towers={name: towers[name] for name in names},
        prepared=prepared,
        devices=device_report(where, models[0].devices()),
        own_bytes=tuple(max(0, one) for one in own),
    )


class _Loader:
    """Loads the model of one executor after the other; the first one decides which engines its graph's nodes use."""

    def __init__(self, folder: Path, options: GroupOptions) -> None:
        self._folder = folder
        self._options = options
        self.choice: Mapping[str, Any] = {}
        self.first: Any = None
        self.fixed = False  # a tower runs on an engine of this choice

    def __call__(self, choice: Mapping[str, Any]) -> Any:
        """For ``dense_form.load_tower``: the first executor's model. Signatures without an engine take any."""
        if self.first is None or (choice and dict(choice) != dict(self.choice)):
            if self.fixed:
                raise _OtherChoice
            self.first, self.choice = self.load(0, choice), choice
        return self.first

    def load(self, number: int, choice: Mapping[str, Any]) -> Any:
        options = self._options
        setup = options.setups[number] if options.setups else None
        with loaded.tables_in(options.table_memory):
            return load_model(
                self._folder,
                options.tags,
                options.intra_op_threads,
                setup.config if setup else options.config,
                setup.device_map if setup else options.device_map,
                choice,
                low_priority=True,
            )


class _OtherChoice(Exception):
    """A signature wants its engine nodes told something else than those of another signature of the same graph."""


def _towers(
    where: str,
    described: Mapping[str, Any],
    wanted: Sequence[str],
    options: GroupOptions,
    loader: _Loader,
    paths: Sequence[Path],
) -> dict[str, dense_form.DenseTower]:
    """By signature, those with an engine first: what the first one needs holds for the graph."""
    towers = {}
    with_engine = sorted(wanted, key=lambda name: not _has_engine(described[name]))
    for name in with_engine:
        entry = described[name]
        wish = dense_form.Wish(options.engine, options.fallback, options.intra_op_threads)
        if options.engine not in (None, dense_form.TENSORFLOW) and not _has_engine(entry) and name != with_engine[0]:
            wish = dataclasses.replace(wish, engine=None)  # other signatures of the bundle have the engine
        find_path = loaded.path_by_index(where, paths)
        try:
            _, tower = dense_form.load_tower(where, name, entry, wish, loader, find_path)
        except _OtherChoice:
            reason = "another signature of the graph runs its engines another way"
            if not options.fallback or options.engine is not None:
                raise UsageError(f"{where}: signature {name!r}: {reason}; no fallback is allowed") from None
            wish = dataclasses.replace(wish, engine=dense_form.TENSORFLOW)
            _, tower = dense_form.load_tower(where, name, entry, wish, loader, find_path)
            tower.reasons.append(reason)
            _log.warning("%s: signature %r: the dense tower runs on tensorflow: %s", where, name, reason)
        loader.fixed = loader.fixed or tower.by_engine
        towers[name] = tower
    return towers


def _plain_tower(
    where: str, name: str, options: GroupOptions, loader: _Loader, paths: Sequence[Path]
) -> dense_form.DenseTower:
    wish = dense_form.Wish(dense_form.TENSORFLOW, options.fallback, options.intra_op_threads)
    return dense_form.load_tower(where, name, {}, wish, loader, loaded.path_by_index(where, paths))[1]


def _has_engine(entry: Mapping[str, Any]) -> bool:
    forms = [entry.get("dense") or {}, (entry.get("split") or {}).get("dense") or {}]
    return any(one.get("form") and one["provider"] != dense_form.TENSORFLOW for one in forms)


def _names(
    where: str,
    definitions: Mapping[str, meta_graph_pb2.SignatureDef],
    described: Mapping[str, Any],
    options: GroupOptions,
) -> list[str]:
    there = set(definitions) - loaded.hidden_signatures(described)
    if options.signatures is None:
        if not there:
            raise CorruptFileError(f"{where}: the model has no signature")
        return sorted(there)
    for name in options.signatures:
        if name not in definitions:
            raise loaded.no_signature(where, name, there)
    return list(options.signatures)


def _load_options(where: str, name: str, options: GroupOptions, model: str) -> loaded.LoadOptions:
    features = None if options.features is None else options.features.get(name)
    return loaded.LoadOptions(
        where=where,
        signature=name,
        tags=options.tags,
        intra_op_threads=options.intra_op_threads,
        features=features,
        user_features=options.user_features,
        config=options.config,
        device_map=options.device_map,
        engine=options.engine,
        fallback=options.fallback,
        table_memory=options.table_memory,
        model=model,
    )


def anonymous_bytes() -> int:
    """Anonymous memory of this process: mapped files are not in it."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
