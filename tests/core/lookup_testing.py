"""Calls TfctrFusedLookup eagerly on files written for the test."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, spec_text
from tfctr.core import library


class LookupBench:
    """Table and vocabulary files of one test module, open in one store."""

    def __init__(self, folder: pathlib.Path, name: str):
        self._folder, self._name = folder, name
        self._ops, self._native = library.load(), library.native()
        self._files: list[str] = []
        self._kinds: list[str] = []
        self._opened = 0
        self._store = self._ops.TfctrStore(container="", shared_name=name)

    def table(self, array: np.ndarray) -> int:
        """Writes a table; returns its file index."""
        file = str(self._folder / f"{len(self._files)}.tbl")
        self._native.write_table(file, f"table_{len(self._files)}", array)
        self._files.append(file)
        self._kinds.append("table")
        return len(self._files) - 1

    def vocab(self, keys: Sequence[Any], values: np.ndarray) -> int:
        """Writes a vocabulary; returns its file index."""
        file = str(self._folder / f"{len(self._files)}.voc")
        self._native.write_vocab(file, f"vocab_{len(self._files)}", keys, values)
        self._files.append(file)
        self._kinds.append("vocab")
        return len(self._files) - 1

    def hash_table(
        self, keys: np.ndarray, rows: np.ndarray, default_row: np.ndarray, storage: str = "float32"
    ) -> tuple[int, str]:
        """Writes a hash file; returns its file index and its path."""
        file = str(self._folder / f"{len(self._files)}.hash")
        self._native.build_hash_table(file, f"table_{len(self._files)}", keys, rows, default_row, storage=storage)
        self._files.append(file)
        self._kinds.append("hash")
        return len(self._files) - 1, file

    def path(self, index: int) -> str:
        """The file of that index."""
        return self._files[index]

    def overlay(self, overlays: Mapping[int, str]) -> None:
        """Lays overlay files over these tables, none over the others."""
        self._ops.TfctrStoreOverlay(
            store=self.store(), indices=tf.constant(list(overlays), tf.int64),
            filenames=tf.constant(list(overlays.values()), tf.string),
        )  # fmt: skip

    def hash_rows(self, index: int, keys: Any, dim: int, storage: str = "float32") -> np.ndarray:
        """What TfctrHashLookup gives."""
        keys = tf.constant(keys, tf.int64)
        return self._ops.TfctrHashLookup(store=self.store(), keys=keys, index=index, dim=dim, storage=storage).numpy()

    def store(self) -> Any:
        """The handle, with every file opened."""
        if self._opened != len(self._files):
            prints = [""] * len(self._files)
            self._ops.TfctrStoreOpen(store=self._store, filenames=self._files, kinds=self._kinds, fingerprints=prints)
            self._opened = len(self._files)
        return self._store

    def run(
        self, spec: LookupSpec, inputs: Mapping[str, Any], *, packed: bool = False, form: str = "rows"
    ) -> np.ndarray:
        """One lookup, its sources taken from ``inputs`` by tensor name."""
        dtype = tf.as_dtype(spec.table_dtype)
        outputs = [OutputSpec(form=form, columns=spec.width, dtype=spec.table_dtype)]
        return self.run_group([(spec, Placement(0, 0))], outputs, inputs, [dtype], packed=packed)[0]

    def run_group(
        self,
        lookups: Sequence[tuple[LookupSpec, Placement]],
        outputs: Sequence[OutputSpec],
        inputs: Mapping[str, Any],
        dtypes: Sequence[Any],
        *,
        packed: bool = False,
        copies: Sequence[Any] = (),
    ) -> list[np.ndarray]:
        """A group; ``packed`` passes the inputs in the arena instead of as args."""
        names = list(inputs)
        arrays = [np.asarray(inputs[n]) for n in names]
        bind = {n: f"{'in' if packed else 'arg'}:{k}" for k, n in enumerate(names)}
        arena, shapes, strings = pack(arrays) if packed else pack([])
        result = self._ops.TfctrFusedLookup(
            store=self.store(),
            arena=arena,
            shapes=shapes,
            strings=tf.constant(strings, tf.string),
            args=[] if packed else [tf.constant(a) for a in arrays],
            spec=spec_text(lookups, outputs, bind, copies),
            layout=[tf.constant(a).dtype for a in arrays] if packed else [],
            Tout=list(dtypes),
        )
        return [r.numpy() for r in result]


def pack(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """Arena, shapes and strings of a packed request (see tfctr/core/lookup/packed_layout.h)."""
    arena, shapes, strings = b"", [], []
    for array in arrays:
        shapes += [array.ndim, *array.shape]
        if array.dtype.kind in "OSU":
            strings += [s if isinstance(s, bytes) else str(s).encode() for s in array.reshape(-1)]
        else:
            data = array.tobytes()
            arena += data + bytes(-len(data) % 64)
    return np.frombuffer(arena, np.uint8), np.array(shapes, np.int64), strings


def spec(bench_table: int, table: np.ndarray, **fields: Any) -> LookupSpec:
    """A spec over a table of ``bench_table``; the sources have their roles as names."""
    width = int(table.shape[1])
    common = {
        "name": "feature",
        "table": bench_table,
        "table_rows": len(table),
        "table_width": width,
        "table_dtype": tf.as_dtype(table.dtype).name,
        "ids": "ids",
    }
    return LookupSpec(**{**common, **fields})
