"""Which inputs of a signature are the parts of one sparse or ragged feature, written beside a SavedModel by whoever
knows.

A SignatureDef can't say that `tags/values` and `tags/row_splits` belong together. A writer that knows leaves
assets.extra/tfctr_features.json, and `tfctr.ServingSession` and `tfctr.convert` read it: {"format": 1, "signatures":
{name: [{"name", "kind": "ragged" | "sparse", "parts": {role: input name}}]}}. Roles: values and row_splits, or indices,
values and dense_shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.errors import CorruptFileError, VersionError

FORMAT = 1
ROLES = {"ragged": ("values", "row_splits"), "sparse": ("indices", "values", "dense_shape")}


def write(folder: Path, signatures: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes the file into the SavedModel ``folder``: features of each signature."""
    target = folder / naming.FEATURES
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"format": FORMAT, "signatures": signatures}, indent=1, sort_keys=True) + "\n")


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Signature -> its features; empty where the SavedModel has no such file.

    Raises:
      CorruptFileError: the file is no such JSON.
      VersionError: it is of a newer format.
    """
    source = folder / naming.FEATURES
    if not source.is_file():
        return {}
    try:
        told = json.loads(source.read_text())
        if told["format"] > FORMAT:
            raise VersionError(f"{source}: format {told['format']}, this tfctr reads up to {FORMAT}; use a newer one")
        return {name: [_feature(entry) for entry in entries] for name, entries in told["signatures"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{source}: not a description of sparse and ragged inputs: {error}") from error


def _feature(entry: Mapping[str, Any]) -> dict[str, Any]:
    parts = {role: str(entry["parts"][role]) for role in ROLES[entry["kind"]]}
    return {"name": str(entry["name"]), "kind": str(entry["kind"]), "parts": parts}
