"""What a manifest says about the dense tower, in words for people: the command line and the report page show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tfctr.bundle.summary import node_words, size_words

_PASS = "dense_engine"
_ALL = 4  # things that a summary lists before it says how many more there are


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseWords:
    """The tower of one form. engine: "" where it stays on TensorFlow; reason: why it is this one, or why none.

    parity: what the numbers were held against, one line. ran_by: provider that ran the form in the last comparison,
    where that was not the engine itself ("": none). steps: every attempt, (what, verdict of the gate or "").
    times: (rows, TensorFlow ms, engine ms, ratio) as measured at the conversion. entry: the manifest's own.
    """

    form: str
    engine: str
    precision: str
    reason: str
    fallback: str
    parity: str
    ran_by: str | None
    steps: tuple[tuple[str, str], ...]
    islands: tuple[tuple[str, str], ...]
    left_outside: tuple[str, ...]
    times: tuple[tuple[int, float, float, float], ...]
    notes: tuple[str, ...]
    entry: Mapping[str, Any]


def towers(manifest: Mapping[str, Any]) -> list[DenseWords]:
    """One entry per form whose tower was looked at; none where nobody asked for an engine."""
    found = []
    for name, info in manifest["signatures"].items():
        split = info.get("split") or {}
        for form, entry in ((name, info.get("dense")), (split.get("signature", ""), split.get("dense"))):
            if entry:
                found.append(_words(form, entry))
    return found


def _words(form: str, entry: Mapping[str, Any]) -> DenseWords:
    has_engine = entry.get("form") is not None
    engine = entry.get("engine") or {}
    version = str(engine.get("version", "")).partition("-")[0]  # OpenVINO adds its build
    name = f"{engine.get('name', entry['provider'])} {version}".strip() if has_engine else ""
    rows = (entry.get("versus_tensorflow") or {}).get("rows", ())
    return DenseWords(
        form=form,
        engine=name,
        precision=entry["precision"],
        reason=entry.get("reason", ""),
        fallback=_fallback(entry) if has_engine else "",
        parity=_parity(entry) if has_engine else "",
        ran_by=ran_by(entry) if has_engine else None,
        steps=tuple((one["what"], (one.get("gate") or {}).get("text", "")) for one in entry.get("steps", ())),
        islands=tuple((one["node"], one.get("reason", "")) for one in entry.get("islands", ())),
        left_outside=tuple(_left(line) for line in entry.get("left_outside", ())),
        times=tuple(
            (r["rows"], r["tensorflow_ms"], r.get("engine_ms", r.get("openvino_ms")), r["ratio"]) for r in rows
        ),
        notes=tuple(entry.get("notes", ())),
        entry=entry,
    )


def _left(line: str) -> str:
    node, colon, why = line.partition(": ")
    return f"{node_words(node)}{colon}{why}"


def _fallback(entry: Mapping[str, Any]) -> str:
    return f"{entry['fallback']}, {entry.get('fallback_precision', 'fp32')}"


def _parity(entry: Mapping[str, Any]) -> str:
    ran = ran_by(entry)
    accuracy = entry.get("accuracy")
    if accuracy:
        words = f"accuracy gate {accuracy['text']}"
        return words if ran is None else f"{words}; judged in NumPy, {entry['provider']} was not run here"
    check = entry.get("check") or {}
    largest = [
        one["max_difference"]
        for one in ((entry.get("parity") or {}, check) if ran is None else (check,))
        if one.get("max_difference") is not None
    ]
    words = f"equal to TensorFlow: max |difference| {max(largest):.2g} (limit 1e-5 + 1e-5 |b|)" if largest else ""
    if ran is None:
        return words or "not compared"
    if not words:
        return "not compared: not run here"
    return f"not compared, as it was not run here; {ran}, its fallback: {words}"


def ran_by(entry: Mapping[str, Any]) -> str | None:
    """The provider that ran the engine's form in the last comparison where it was another one ("": none did); None
    where it was the engine itself.
    """
    provider = (entry.get("check") or {}).get("provider")
    return None if provider in (None, entry["provider"]) else str(provider)


def cache_words(entry: Mapping[str, Any]) -> str:
    """What came from the compile cache, one line."""
    cache = entry.get("cache") or {}
    words = {"hit": "from the cache", "miss": "made and kept", "off": "made, not kept"}
    return ", ".join(f"{part} {words.get(state, state)}" for part, state in cache.items())


def lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A few lines: what the command line prints after a conversion."""
    for tower in towers(manifest):
        if not tower.engine:
            yield f"dense tower ({tower.form}): stays on TensorFlow: {tower.reason}"
        else:
            yield f"dense tower ({tower.form}): {tower.engine}, {tower.precision}; {tower.parity}"
            yield f"  {_why(tower)}; elsewhere: {tower.fallback}"
        for what, verdict in tower.steps if len(tower.steps) > 1 else ():
            yield f"  {what}{f': {verdict}' if verdict else ''}"
        for line in tower.notes:
            yield f"  {line}"
        yield from _listed("left outside: ", tower.left_outside)
        if tower.engine:
            yield f"  {_files(tower.entry)}; {cache_words(tower.entry)}"
    for one in manifest.get("passes", ()):
        if one["name"] == _PASS and not one.get("reused"):
            yield from one["details"].get("cache", ())


def _why(tower: DenseWords) -> str:
    reason = tower.reason or "asked for"
    seen = "; ".join(f"{ratio:.2f}x at {rows} rows" for rows, _, _, ratio in tower.times)
    return reason if not seen or "x at " in reason else f"{reason} ({seen} of TensorFlow's speed here)"


def _files(entry: Mapping[str, Any]) -> str:
    files = entry.get("files", ())
    return f"{len(files)} file{'' if len(files) == 1 else 's'}, {size_words(sum(f['bytes'] for f in files))}"


def _listed(what: str, found: tuple[str, ...]) -> Iterator[str]:
    for line in found[:_ALL]:
        yield f"  {what}{line}"
    if len(found) > _ALL:
        yield f"  {what}{len(found) - _ALL} more (see the report)"
