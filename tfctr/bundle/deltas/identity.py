"""Which version of which bundle this is, and whether a delta follows it.

A lineage starts at a bundle as it was converted (sequence 0); its hash covers the graph and every file. Each delta adds
one: hash of version k = SHA-256(hash of version k-1, hash of delta k). So equal hashes mean the same base and the same
deltas in the same order; a compacted version keeps the hash of the version that it was made from.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from tfctr.errors import CorruptFileError, UsageError

ORIGIN_FIELDS = ("bundle_id", "created", "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """base: hash of the bundle that the lineage started from. hash: of this version. sequence: deltas since the base.
    origin: what the base is called (``bundle_id``, ``created``, ``source``: path of its model). start: {sequence, hash}
    where ``deltas`` begins (the base, or the version that was compacted last). deltas: {sequence, hash, created, rows,
    removed} of each one since, in order.
    """

    base: str
    hash: str
    sequence: int
    origin: Mapping[str, str]
    start: Mapping[str, Any]
    deltas: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The manifest's ``version``."""
        return {
            "base": self.base,
            "hash": self.hash,
            "sequence": self.sequence,
            "origin": dict(self.origin),
            "start": dict(self.start),
            "deltas": [dict(one) for one in self.deltas],
        }

    def followed_by(self, delta: Mapping[str, Any]) -> Version:
        """The version that a delta makes of this one; check with :func:`check_follows` first.

        delta: as in ``deltas``, at least {hash}."""
        hashed = next_hash(self.hash, str(delta["hash"]))
        entry = {**delta, "sequence": self.sequence + 1}
        return dataclasses.replace(self, hash=hashed, sequence=self.sequence + 1, deltas=(*self.deltas, entry))

    def compacted(self) -> Version:
        """The same version, its list of deltas begun anew."""
        return dataclasses.replace(self, start={"sequence": self.sequence, "hash": self.hash}, deltas=())

    def describe(self) -> str:
        """For messages: ``version 3 (1f0c22ab90d1) of the bundle 8a31... of models/08``."""
        return f"version {self.sequence} ({short(self.hash)}) of {origin_words(self.origin)}"


def short(text: str) -> str:
    """The part of a hash that people are shown."""
    return text[:12]


def origin_words(origin: Mapping[str, Any]) -> str:
    """How messages name the bundle that a lineage started from."""
    return f"the bundle {short(str(origin['bundle_id']))} (made {origin['created']} from {origin['source']})"


def base_hash(manifest: Mapping[str, Any]) -> str:
    """Hash of a bundle as converted: its id, its graph, and kind, size and fingerprint of every file, in order."""
    digest = hashlib.sha256(b"tfctr bundle 1\n")
    digest.update(f"{manifest['bundle_id']} {manifest['model']['sha256']}\n".encode())
    for entry in manifest["store"]["files"]:
        digest.update(f"{entry['kind']} {entry['bytes']} {entry['fingerprint']}\n".encode())
    return digest.hexdigest()


def next_hash(previous: str, delta: str) -> str:
    """Hash of the version that the delta with the hash ``delta`` makes of the version ``previous``."""
    return hashlib.sha256(f"tfctr version 1\n{previous}\n{delta}\n".encode()).hexdigest()


def version_of(manifest: Mapping[str, Any], where: str) -> Version:
    """The version that a bundle's manifest is of: its ``version``, or the start of a lineage where it has none.

    where: the bundle, for messages. CorruptFileError where hash, sequence and deltas do not fit together.
    """
    told = manifest.get("version")
    if told is None:
        base = base_hash(manifest)
        origin = {
            "bundle_id": str(manifest["bundle_id"]),
            "created": str(manifest.get("created", "?")),
            "source": str((manifest.get("source") or {}).get("path", "?")),
        }
        return Version(base=base, hash=base, sequence=0, origin=origin, start={"sequence": 0, "hash": base})
    version = Version(
        base=told["base"],
        hash=told["hash"],
        sequence=told["sequence"],
        origin=told["origin"],
        start=told["start"],
        deltas=tuple(told["deltas"]),
    )
    _check_lineage(version, where)
    return version


def wrong_version(told: Any) -> str:
    """What is wrong with the types of a manifest's ``version``; "" where nothing is. A missing one is fine."""
    if told is None:
        return ""
    fields = {"base": str, "hash": str, "sequence": int, "origin": dict, "start": dict, "deltas": list}
    for name, kind in fields.items():
        if not isinstance(told, dict) or not isinstance(told.get(name), kind):
            return f"version: the field {name!r} is missing or not a {kind.__name__}"
    if any(not isinstance(told["origin"].get(name), str) for name in ORIGIN_FIELDS):
        return f"version: origin needs the texts {', '.join(ORIGIN_FIELDS)}"
    for entry in (told["start"], *told["deltas"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("hash"), str):
            return "version: an entry of start or deltas has no hash"
        if not isinstance(entry.get("sequence"), int):
            return "version: an entry of start or deltas has no sequence"
    return ""


def check_follows(version: Version, delta: Mapping[str, Any], delta_path: str, where: str) -> None:
    """UsageError, naming what does not fit, unless the delta (the content of a ``delta.json``) is the next one of
    ``version``. where: what has that version, for messages.
    """
    base, previous, number = delta["base"], delta["previous"], delta["sequence"]
    if base["hash"] != version.base:
        raise UsageError(
            f"{delta_path}: is a delta of another model or conversion, {origin_words(base)}; {where} is "
            f"{version.describe()}"
        )
    if any(one["hash"] == delta["hash"] for one in version.deltas):
        raise UsageError(f"{delta_path}: is delta {number}, which {where} has already ({version.describe()})")
    if number <= version.sequence:
        raise UsageError(
            f"{delta_path}: is delta {number}, which gives version {number}; {where} is at version {version.sequence} "
            "already (wrong order, or the same delta twice)"
        )
    if number > version.sequence + 1:
        first, last = version.sequence + 1, number - 1
        missing = f"delta {first} is" if first == last else f"deltas {first} to {last} are"
        raise UsageError(
            f"{delta_path}: is delta {number}, but {where} is at version {version.sequence}: {missing} missing before "
            "it (a gap, or the wrong order)"
        )
    if previous["hash"] != version.hash:
        raise UsageError(
            f"{delta_path}: is delta {number} to another version {previous['sequence']} "
            f"({short(previous['hash'])}); {where} is {version.describe()}, made by other deltas"
        )


def _check_lineage(version: Version, where: str) -> None:
    hashed, number = str(version.start["hash"]), int(version.start["sequence"])
    for delta in version.deltas:
        hashed, number = next_hash(hashed, delta["hash"]), number + 1
        if delta["sequence"] != number:
            raise CorruptFileError(f"{where}: its manifest lists delta {delta['sequence']} where {number} is expected")
    if hashed != version.hash or number != version.sequence:
        raise CorruptFileError(
            f"{where}: its manifest says version {version.sequence} ({short(version.hash)}), but its deltas give "
            f"{number} ({short(hashed)})"
        )
    if number == 0 and hashed != version.base:
        raise CorruptFileError(f"{where}: its manifest says version 0, but not with the hash of its base")
