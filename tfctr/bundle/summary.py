"""What a manifest says about the split by user, devices, transfers and smaller tables, in words for people.

The command line and the report page show the same. Every function takes a manifest (``docs/bundle_format.md``) and
gives nothing where its subject was not asked for.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CANDIDATES = 500  # per user, where a saving is told in one number
COMPACT_SHARE = 0.05  # of a table's rows in its overlay: beyond it a compaction is advised
# Scopes of forms (S__split/user/...) and of exported functions (StatefulPartitionedCall/...).
_SCOPES = re.compile(
    r"^(?:[^/]+__(?:split|packed)[^/]*/)?(?:(?:user|item)/)?(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*"
)
_OP_WORDS = {"TfctrFusedLookup": "lookups", "TfctrUnpack": "inputs"}
_NOT_ASKED = "no devices were given"


def size_words(size: float) -> str:
    """Bytes for people: 512 B, 1.4 MB, 3.1 GB."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def count_words(count: float) -> str:
    """Large numbers for people: 950, 204 k, 1.3 M."""
    for unit in ("", " k", " M", " G"):
        if count < 1000 or unit == " G":
            return f"{count:.0f}{unit}" if count >= 100 or count == int(count) else f"{count:.1f}{unit}"
        count /= 1000
    raise AssertionError("unreachable")


def node_words(name: str) -> str:
    """A node or tensor without the scopes that exporting and splitting put before its name."""
    short = _SCOPES.sub("", name)
    return short or name


def pass_entry(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The report of one pass; empty where it did not run."""
    return next((p for p in manifest.get("passes", ()) if p["name"] == name), {})


def details(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pass_entry(manifest, name).get("details") or {}
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitWords:
    """The split of one signature. done: there is a split form; reason: why not. before, item, user: operations per
    candidate row before, and after, and once per user. saved: share of them that goes with ``CANDIDATES`` rows per
    user.
    """

    signature: str
    features: tuple[str, ...]
    of: int
    done: bool
    reason: str = ""
    before: int = 0
    item: int = 0
    user: int = 0
    broadcasts: tuple[tuple[str, str], ...] = ()
    item_side: tuple[tuple[str, str], ...] = ()
    form: str = ""
    row_to_user: str = ""

    @property
    def saved(self) -> float:
        return self.saved_with(CANDIDATES)

    def saved_with(self, candidates: int) -> float:
        if not self.before:
            return 0.0
        return 1.0 - (self.item + self.user / candidates) / self.before


def splits(manifest: Mapping[str, Any]) -> list[SplitWords]:
    """One entry per signature for which user features were declared or found."""
    refused = {r["what"]: r["reason"] for r in pass_entry(manifest, "split_user_item").get("refused", ())}
    found = []
    for name, info in manifest["signatures"].items():
        user = info.get("user")
        if user is None:
            continue
        split = info.get("split")
        common: dict[str, Any] = {
            "signature": name,
            "features": tuple(user["features"]),
            "of": len(info["features"]),
        }
        if split is None:
            reason = next((text for what, text in refused.items() if name in what.split()), "")
            failed = pass_entry(manifest, "split_user_item").get("error", "")
            found.append(SplitWords(**common, done=False, reason=reason or failed or "the pass did not run"))
            continue
        flops = split["flops"]
        found.append(
            SplitWords(
                **common,
                done=True,
                before=flops["before_per_row"],
                item=flops["item_per_row"],
                user=flops["user_per_row"],
                broadcasts=tuple((_place_words(b["at"]), _past_words(b["moved_past"])) for b in split["broadcasts"]),
                item_side=tuple((e["feature"], _mixed_words(e)) for e in split["item_side"]),
                form=split["signature"],
                row_to_user=split["row_to_user"],
            )
        )
    return found


def _place_words(at: str) -> str:
    op, _, node = at.partition(" ")
    short = node_words(node)
    return f"{short} ({op})" if short and short.lower() != op.lower() else op


def _past_words(ops: Sequence[str]) -> str:
    """``lookups, ConcatV2, MatMul``; ops that come several times once, in their order."""
    return ", ".join(dict.fromkeys(_OP_WORDS.get(op, op) for op in ops)) or "nothing"


def _mixed_words(entry: Mapping[str, Any]) -> str:
    where = _place_words(f"{entry['op']} {entry['node']}".strip())
    return f"{where}: {entry['reason']}" if where else str(entry["reason"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementWords:
    """Devices of the two sides and operations on each. done: False with the reason. kept: (node, device) that the
    model sets. elsewhere: (node, op) that the dense device has no kernel for.
    """

    done: bool
    reason: str = ""
    sparse: str = ""
    dense: str = ""
    sparse_ops: int = 0
    dense_ops: int = 0
    kept: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()


def placement(manifest: Mapping[str, Any]) -> PlacementWords | None:
    """None where no devices were given."""
    entry = pass_entry(manifest, "place_devices")
    found = details(manifest, "place_devices").get("placement")
    if found is None:
        reasons = [r["reason"] for r in entry.get("refused", ()) if not r["reason"].startswith(_NOT_ASKED)]
        reasons += [entry["error"]] if entry.get("error") else []
        return PlacementWords(done=False, reason=reasons[0]) if reasons else None
    return PlacementWords(
        done=True,
        sparse=found["sparse"],
        dense=found["dense"],
        sparse_ops=found["nodes"]["sparse"],
        dense_ops=found["nodes"]["dense"],
        kept=tuple((node_words(n), d) for n, d in found["kept"].items()),
        elsewhere=tuple((node_words(n), op) for n, op in found["no_kernel"].items()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferWords:
    """What crosses one way for one set of signatures. crossings: tensors that cross per call; packed: tensors that the
    packed one holds; worked_out: sizes that need not cross; apart: (tensor, why) that cross by themselves.
    """

    to: str
    signatures: tuple[str, ...]
    crossings: int
    packed: tuple[str, ...]
    worked_out: int
    apart: tuple[tuple[str, str], ...]


def transfers(manifest: Mapping[str, Any]) -> list[TransferWords]:
    """In the order in which they happen; none where nothing was placed."""
    found = []
    for entry in details(manifest, "merge_transfers").get("transfers", ()):
        packed = tuple(node_words(part["tensor"]) for part in entry["packed"])
        apart = tuple((node_words(tensor), reason) for tensor, reason in entry["apart"].items())
        found.append(
            TransferWords(
                to="dense" if "dense" in entry["direction"] else "sparse",
                signatures=tuple(entry["signatures"]),
                crossings=bool(packed) + len(entry["alone"]) + len(apart),
                packed=packed,
                worked_out=len(entry["worked_out"]),
                apart=apart,
            )
        )
    return found


def crossing_counts(manifest: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Signature -> tensors that cross per call (to the dense device, back)."""
    counts: dict[str, tuple[int, int]] = {}
    for entry in transfers(manifest):
        for name in entry.signatures:
            there, back = counts.get(name, (0, 0))
            dense = entry.to == "dense"
            counts[name] = (there + entry.crossings * dense, back + entry.crossings * (not dense))
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableWords:
    """Tables stored smaller. tables: as in the manifest. left: (table, why it stays). gates: (signature, passed, one
    line). judged_on: on which rows. speed: lookups of one call in microseconds, float32 and now, None where not timed.
    """

    dtype: str
    tables: tuple[Mapping[str, Any], ...]
    left: tuple[tuple[str, str], ...]
    gates: tuple[tuple[str, bool, str], ...]
    judged_on: str
    bytes_before: int
    bytes_after: int
    speed: Mapping[str, Any] | None


def tables(manifest: Mapping[str, Any]) -> TableWords | None:
    """None where tables were to stay as they are."""
    found = details(manifest, "compress_tables")
    entry = pass_entry(manifest, "compress_tables")
    if "dtype" not in found and not entry.get("error") and not entry.get("refused"):
        return None
    left = [(e["table"], e["reason"]) for e in found.get("left", ())]
    if "left" not in found:
        left = [(r["what"], r["reason"]) for r in entry.get("refused", ())]
    if entry.get("error"):
        left.append(("every table", entry["error"]))
    return TableWords(
        dtype=found.get("dtype", ""),
        tables=tuple(found.get("tables", ())),
        left=tuple((name.removeprefix("table "), reason.removeprefix("stays float32: ")) for name, reason in left),
        gates=tuple((name, result["passed"], result["text"]) for name, result in found.get("gate", {}).items()),
        judged_on=found.get("judged_on", ""),
        bytes_before=found.get("bytes_before", 0),
        bytes_after=found.get("bytes_after", 0),
        speed=found.get("speed"),
    )


def overlay_share(table_rows: int, overlay: Mapping[str, Any]) -> float:
    """How much of a table its overlay is: rows and removed keys, per row of the table."""
    changed = int(overlay["rows"]) + int(overlay["removed"])
    return changed / table_rows if table_rows else float(changed > 0)


def version_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Which version this is and how much of each table lies in an overlay; nothing of a bundle as converted."""
    version = manifest.get("version")
    if version is None:
        return
    origin = version["origin"]
    yield (
        f"version {version['sequence']} ({version['hash'][:12]}) of the bundle {origin['bundle_id'][:12]}, made "
        f"{origin['created']} from {origin['source']}"
    )
    if version["start"]["sequence"]:
        yield f"  compacted at version {version['start']['sequence']}"
    for delta in version["deltas"][-3:]:
        yield f"  delta {delta['sequence']} of {delta['created']}: {delta['rows']:,} rows, {delta['removed']:,} removed"
    files = manifest["store"]["files"]
    for overlay in files:
        if overlay["kind"] == "overlay":
            rows = (files[overlay["base"]]["shape"] or [1])[0]
            share = overlay_share(rows, overlay)
            advice = ", compact it" if share > COMPACT_SHARE else ""
            yield (
                f"  {overlay['name']}: {overlay['rows']:,} rows and {overlay['removed']:,} removed keys over "
                f"{rows:,} rows ({share:.2%}{advice})"
            )


def lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A few lines on all of it: what the command line prints after a conversion."""
    for one in manifest["passes"]:
        if one["status"] == "failed" and not one.get("reused"):
            yield f"pass {one['name']} failed and was undone: {one['error']}"
    for split in splits(manifest):
        yield from _split_lines(split)
    placed = placement(manifest)
    if placed is not None:
        yield from _placement_lines(placed, manifest)
    smaller = tables(manifest)
    if smaller is not None:
        yield from _table_lines(smaller)


def _split_lines(split: SplitWords) -> Iterator[str]:
    if not split.features:
        yield f"once per user ({split.signature}): no feature is the same for all rows of a request in the samples"
        return
    named = _named(split.features)
    if not split.done:
        yield f"once per user ({split.signature}): nothing: {split.reason}"
        yield f"  requests may still give {named} with one row per user: they are repeated before the call"
        return
    yield (
        f"once per user ({split.signature}): {len(split.features)} of {split.of} features ({named}); "
        f"{count_words(split.before)} -> {count_words(split.item)} operations per candidate, "
        f"{count_words(split.user)} per user: {split.saved:.0%} less at {CANDIDATES} candidates"
    )
    for at, past in split.broadcasts[:4]:
        yield f"  user rows are repeated at {at}, behind {past}"
    if len(split.broadcasts) > 4:
        yield f"  and at {len(split.broadcasts) - 4} more places (see the report)"
    for feature, why in split.item_side:
        yield f"  {feature} stays with the candidates: {why}"


def _placement_lines(placed: PlacementWords, manifest: Mapping[str, Any]) -> Iterator[str]:
    if not placed.done:
        yield f"devices: nothing was placed: {placed.reason}"
        return
    yield f"devices: {placed.sparse_ops} operations on {placed.sparse}, {placed.dense_ops} on {placed.dense}"
    if placed.kept:
        yield f"  {len(placed.kept)} keep the device that the model sets (--force-placement changes it)"
    if placed.elsewhere:
        node, op = placed.elsewhere[0]
        yield f"  {len(placed.elsewhere)} can't run on {placed.dense} ({op} {node}, ...): they stay on {placed.sparse}"
    for name, (there, back) in crossing_counts(manifest).items():
        yield f"  {name}: {_tensors(there)} to {placed.dense} per call, {back} back"
    for entry in transfers(manifest):
        for tensor, why in entry.apart[:3] if entry.crossings > 1 else ():
            yield f"  {tensor} crosses by itself: {why}"


def _table_lines(smaller: TableWords) -> Iterator[str]:
    if smaller.tables:
        yield (
            f"tables: {len(smaller.tables)} stored as {smaller.dtype}, {size_words(smaller.bytes_before)} -> "
            f"{size_words(smaller.bytes_after)}"
        )
    else:
        yield f"tables: none is stored as {smaller.dtype}"
    for name, passed, text in smaller.gates:
        yield f"  accuracy gate ({name}) {text}" if passed else f"  accuracy gate ({name}): {text}"
    if smaller.judged_on:
        yield f"  judged on {smaller.judged_on}"
    for name, why in smaller.left[:4]:
        yield f"  {name} stays as it was: {why}"
    if len(smaller.left) > 4:
        yield f"  and {len(smaller.left) - 4} more (see the report)"


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def _named(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
