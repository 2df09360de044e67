"""Files that engines read, as entries of the bundle's store: each content once, whatever forms share it."""

from __future__ import annotations

import hashlib

from graph_opt.item import GraphItem
from graph_opt.store_files import add_blob

FOLDER_NAME = "dense_{number}_{what}"


class DenseFiles:
    """Gives the store index of a file's bytes. Towers are numbered in the order in which they come."""

    def __init__(self, item: GraphItem) -> None:
        self._item = item
        self._towers: dict[str, int] = {}
        self._indices: dict[tuple[str, str], int] = {}

    def add(self, tower: bytes, what: str, data: bytes) -> int:
        """Index of ``data``, which is the part ``what`` ("tower.onnx", "sm89.plan") of the engine of ``tower`` (its
        ONNX bytes). Parts of equal contents that belong to equal towers are one file.
        """
        number = self._towers.setdefault(hashlib.sha256(tower).hexdigest(), len(self._towers))
        key = (f"{number}/{what}", hashlib.sha256(data).hexdigest())
        if key not in self._indices:
            same = sum(one == key[0] for one, _ in self._indices)
            name = FOLDER_NAME.format(number=number, what=f"{same}_{what}" if same else what)
            self._indices[key] = add_blob(self._item, data, name)
        return self._indices[key]
