"""Which form of a signature runs its dense tower: by an engine, where the bundle has one that runs here, else as
TensorFlow's nodes. Nothing falls back unnoticed: it is logged in one line and stands in ``ServingSession.describe``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.framework import node_def_pb2

from tfctr.engines import isa, providers
from tfctr.engines.native import Engine, open_engine
from tfctr.engines.node import engine_spec
from tfctr.engines.spec import PRECISIONS, EngineSpec
from tfctr.errors import CorruptFileError, TfctrError, UsageError

_log = logging.getLogger("tfctr")
TENSORFLOW = "tensorflow"
Entry = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the caller asks for. engine: a provider, None: as the bundle says. fallback: whether another may run.
    threads: of one run of an engine."""

    engine: str | None = None
    fallback: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        if self.engine is not None and self.engine not in providers.PROVIDERS:
            raise UsageError(f"engine {self.engine!r}: expected {', '.join(providers.PROVIDERS)}")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run the tower. entry: the manifest's, as this provider is asked (``why_not``)."""

    provider: str
    precision: str
    entry: Entry


@dataclasses.dataclass
class DenseTower:
    """What runs and why. asked, running: providers. reasons: why each one before ``running`` did not, in order.
    entry: the signature's in the manifest. plain, split: the same of the forms whose towers engines run, None for
    those that stay; names: what these forms are called without an engine. engines: theirs, open, as the graph's op will
    find them; kept open as long as this lives.
    """

    asked: str
    asked_precision: str
    running: str
    precision: str
    reasons: list[str]
    entry: Entry
    plain: Entry | None = None
    split: Entry | None = None
    names: tuple[str, ...] = ()
    engines: list[Engine] = dataclasses.field(default_factory=list)

    @property
    def by_engine(self) -> bool:
        return self.running != TENSORFLOW

    @property
    def fell_back(self) -> bool:
        return bool(self.reasons)

    @property
    def _stays(self) -> str:
        """Why a tower runs on TensorFlow though nothing failed."""
        if self.by_engine:
            return ""
        return "asked for" if _has_engine(self.entry) else str(self.entry.get("reason") or "")

    def applied(self, described: Entry) -> dict[str, Any]:
        """A signature's manifest entry with the engine's forms in place of the plain ones; "form" names the one that
        runs where requests are not packed, None: the signature itself."""
        found = {**described, "form": None}
        if self.plain is not None:
            found |= {"form": self.plain["form"], "packed": self.plain.get("packed")}
        if self.split is not None:
            names = {"signature": self.split["form"], "packed": self.split.get("packed")}
            found["split"] = {**described["split"], **names}
        return found

    def close(self) -> None:
        """Lets go of the engines; the graph's op keeps what it uses."""
        self.engines = []

    def choice(self) -> dict[str, Any]:
        """What was asked for, what runs, and why that is not the same."""
        told = {"asked": self.asked, "running": self.running, "precision": self.precision, "fallback": self.fell_back}
        return {**told, "reason": "; ".join(self.reasons) or self._stays}

    def describe(self, requests: Mapping[str, int]) -> dict[str, Any]:
        """See ``ServingSession.describe``."""
        told = [engine.describe() for engine in self.engines]
        by_engine = {"plain": self.plain, "split": self.split}
        calls = sum(requests[form] for form, entry in by_engine.items() if entry is not None)
        return {
            **self.choice(),
            "isa": {"built": self.entry.get("isa"), "here": isa.cpu_isa()},
            "engine": {"name": self.running, "version": told[0].get("version")} if told else None,
            "buckets": sorted({one["rows"] for each in told for one in each.get("variants", ()) if one.get("rows")}),
            "engines": told,
            "calls": calls,
        }


def load_tower(
    where: str,
    signature: str,
    described: Entry,
    wish: Wish,
    load: Callable[[Mapping[str, Any]], Any],
    path: Callable[[int], Path],
) -> tuple[Any, DenseTower]:
    """(the loaded model, its tower): the first candidate whose engines open is what runs.

    load: loads the model with an engine choice ({} leaves the graph's). path: of the store's file with an index.

    Raises:
      UsageError: what is wished for is not in the bundle, or does not run here and nothing else may.
      CorruptFileError: a file of the engine is damaged.
    """
    plain, split = _forms(described)
    entry = plain if plain is not None else split if split is not None else described.get("dense") or {}
    _check(where, signature, entry)
    candidates = _candidates(where, signature, entry, wish)
    first = candidates[0]
    reasons: list[str] = []
    models: dict[tuple[tuple[str, Any], ...], Any] = {}
    for candidate in candidates:
        tower = DenseTower(first.provider, first.precision, candidate.provider, candidate.precision, reasons, entry)
        if tower.by_engine:
            tower.plain, tower.split = plain, split
            tower.names = (*([signature] if plain else []), *([described["split"]["signature"]] if split else []))
        why = providers.why_not(candidate.provider, candidate.entry)
        if not why:
            choice = _choice(candidate, entry, wish.threads)
            key = tuple(sorted(choice.items()))
            model = models.get(key) or load(choice)
            models = {key: model}
            why = _open(tower, model, path)
            if not why:
                _report(where, signature, tower)
                return model, tower
        if not wish.fallback or candidate is candidates[-1]:
            raise UsageError(_refusal(where, signature, candidate, why, wish, entry))
        reasons.append(f"{candidate.provider}: {why}")
    raise AssertionError("tensorflow always runs")


def _check(where: str, signature: str, entry: Entry) -> None:
    """CorruptFileError for a provider or precision that there is not: what runs would be called by a wrong name."""
    if not entry:
        return
    pairs = {(entry["provider"], entry["precision"]), (entry["fallback"], entry["fallback_precision"])}
    for provider, precision in sorted(pairs):
        if precision not in PRECISIONS.get(provider, ()):
            known = "; ".join(f"{name}: {', '.join(one)}" for name, one in PRECISIONS.items())
            raise CorruptFileError(
                f"{where}: signature {signature!r}: the manifest's dense tower has the provider {provider!r} in "
                f"{precision!r}, expected one of {known}"
            )


def _candidates(where: str, signature: str, entry: Entry, wish: Wish) -> list[Candidate]:
    plain = Candidate(TENSORFLOW, "fp32", {})
    has_engine = _has_engine(entry)
    if wish.engine == TENSORFLOW or (not has_engine and wish.engine is None):
        return [plain]
    built = Candidate(entry["provider"], entry["precision"], entry) if has_engine else None
    fallback = _fallback(entry) if has_engine else None
    if wish.engine is not None:
        found = [one for one in (built, fallback) if one is not None and one.provider == wish.engine]
        if not found:
            raise UsageError(f"{where}: signature {signature!r}: no engine {wish.engine!r}; {_has(entry)}")
        return found
    return [one for one in (built, fallback, plain) if one is not None]


def _forms(described: Entry) -> tuple[Entry | None, Entry | None]:
    """The entries of the plain and of the split form, each where it has an engine; of one provider (a graph's nodes are
    told one)."""
    plain, split = described.get("dense") or {}, (described.get("split") or {}).get("dense") or {}
    with_plain, with_split = _has_engine(plain), _has_engine(split)
    if with_plain and with_split and plain["provider"] != split["provider"]:
        with_split = False
    return plain if with_plain else None, split if with_split else None


def _has_engine(entry: Entry) -> bool:
    return bool(entry.get("form")) and entry["provider"] != TENSORFLOW


def _fallback(entry: Entry) -> Candidate | None:
    """What the manifest names beside TensorFlow."""
    provider = entry.get("fallback") or TENSORFLOW
    precision = entry.get("fallback_precision") or "fp32"
    if provider == TENSORFLOW or (provider, precision) == (entry["provider"], entry["precision"]):
        return None
    return Candidate(provider, precision, {**entry, "precision": precision})


def _choice(candidate: Candidate, entry: Entry, threads: int) -> dict[str, Any]:
    """What the graph's engine nodes are told instead of what they say themselves."""
    if candidate.provider == TENSORFLOW:
        return {}
    own = (entry["provider"], entry["precision"])
    if (candidate.provider, candidate.precision) == own:
        return {"threads": threads}
    return {"threads": threads, "provider": candidate.provider, "precision": candidate.precision}


def _open(tower: DenseTower, model: Any, path: Callable[[int], Path]) -> str:
    """Opens the engines of the tower's forms before the first request does; why it can't be, "" where it could."""
    if not tower.by_engine:
        return ""
    try:
        providers.load(tower.running)
        for spec in _specs(model, tower.names, path):
            tower.engines.append(open_engine(spec))
    except CorruptFileError:
        raise
    except TfctrError as error:
        tower.engines.clear()
        return str(error)
    return ""


def _specs(model: Any, names: Sequence[str], path: Callable[[int], Path]) -> list[EngineSpec]:
    """The engines of these forms, once each: a form and its packed form have a node each for the same one."""
    found: dict[str, EngineSpec] = {}
    for use in model.engines():
        if use["label"] in names:
            node = node_def_pb2.NodeDef.FromString(use["node_def"])
            found[use["label"]] = engine_spec(node, {index: path(index) for index in node.attr["files"].list.i})
    return list(found.values())


def _refusal(where: str, signature: str, candidate: Candidate, why: str, wish: Wish, entry: Entry) -> str:
    asked = "it was asked for" if wish.engine is not None else "no fallback is allowed"
    return (
        f"{where}: signature {signature!r}: {candidate.provider} {candidate.precision} does not run the dense tower "
        f"here: {why}; {asked}; {_has(entry)}"
    )


def _has(entry: Entry) -> str:
    """What there is, for messages."""
    if not _has_engine(entry):
        reason = entry.get("reason")
        return "there is: tensorflow" + (f" ({reason})" if reason else "")
    targets = providers.plan_targets(entry)
    told = [f"{entry['provider']} {entry['precision']}" + (f" for {', '.join(targets)}" if targets else "")]
    fallback = _fallback(entry)
    if fallback is not None:
        told.append(f"{fallback.provider} {fallback.precision}")
    return f"there is: {'; '.join([*told, TENSORFLOW])}"


def _report(where: str, signature: str, tower: DenseTower) -> None:
    if tower.fell_back:
        _log.warning(
            "%s: signature %r: the dense tower runs on %s %s instead of %s %s: %s",
            where,
            signature,
            tower.running,
            tower.precision,
            tower.asked,
            tower.asked_precision,
            "; ".join(tower.reasons),
        )
    built, here = tower.entry.get("isa"), isa.cpu_isa()
    if tower.running == "openvino" and built and built != here:
        _log.warning(
            "%s: signature %r: the dense engine was tuned on a CPU with %s, this one has %s; it runs in %s as asked",
            where,
            signature,
            built,
            here,
            tower.precision,
        )
