"""Fused lookups over hash files, with and without an overlay: the same bits as the same lookup over a static table of
the rows that TfctrHashLookup gives; and that one against a dictionary."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step
from tests.core import test_fused_lookup_property as property_cases
from tests.core.lookup_testing import LookupBench
from tests.core.test_fused_lookup_storage import read_back, same_bits, stored
from tfctr.core import library

WIDTHS = (1, 8, 16, 17)
STORAGES = ("float32", "float16", "bfloat16", "int8")
FIND = Step("find")
INT64 = np.iinfo(np.int64)
# The first of these have a row in the base; CHANGED and ADDED get one from the overlay, REMOVED lose theirs.
KEYS = np.array([INT64.min, INT64.max, 0, -1, 1, -5, *range(10, 30), 2**40, -(2**40), 7**20], np.int64)
ADDED, REMOVED, UNKNOWN = [2**50, -77], [0, 12, INT64.max], [3, INT64.min + 1, -2]
CHANGED = [INT64.min, 15, -1]
POOL = np.concatenate([KEYS, ADDED, UNKNOWN, np.random.default_rng(1).integers(INT64.min, INT64.max, 9, np.int64)])


@dataclasses.dataclass(frozen=True)
class Table:
    """A hash file of the store, and what it must give by key."""

    index: int
    dim: int
    storage: str
    rows: dict[int, np.ndarray]
    default: np.ndarray

    def lookup(self, keys: Any) -> np.ndarray:
        flat = [self.rows.get(int(k), self.default) for k in np.asarray(keys).reshape(-1)]
        return np.array(flat, np.float32).reshape(*np.shape(keys), self.dim)


class Tables:
    """For every width, storage and (overlay or not) a table; and a static one of the rows that POOL finds."""

    def __init__(self, folder: pathlib.Path, name: str):
        self.bench = LookupBench(folder, name)
        rng = np.random.default_rng(0)
        overlays: dict[int, str] = {}
        self.tables: dict[tuple[int, str, bool], Table] = {}
        for width in WIDTHS:
            for storage in STORAGES:
                values = rng.uniform(0.1, 1, (len(KEYS) + 1, width)).astype(np.float32)
                kept = _stored_values(values, storage)
                for overlaid in (False, True):
                    index, path = self.bench.hash_table(KEYS, values[:-1], values[-1], storage)
                    rows = dict(zip(KEYS.tolist(), kept[:-1], strict=True))
                    if overlaid:
                        overlays[index] = str(folder / f"{index}.overlay")
                        _write_overlay(overlays[index], path, storage, rows, rng)
                    self.tables[width, storage, overlaid] = Table(index, width, storage, rows, kept[-1])
        self.bench.overlay(overlays)
        self.statics = LookupBench(folder, name + "_static")
        self.static = {
            which: self.statics.table(self.bench.hash_rows(t.index, POOL, t.dim, t.storage))
            for which, t in self.tables.items()
        }


def _stored_values(values: np.ndarray, storage: str) -> np.ndarray:
    return values if storage == "float32" else read_back(stored(values, storage))


def _write_overlay(path: str, base: str, storage: str, rows: dict[int, np.ndarray], rng: np.random.Generator) -> None:
    width = len(next(iter(rows.values())))
    keys = CHANGED + ADDED
    values = rng.uniform(2, 3, (len(keys), width)).astype(np.float32)
    array = values if storage == "float32" else stored(values, storage)
    native = library.native()
    native.write_delta_file(
        path + ".delta", "table_" + pathlib.Path(base).stem, np.array(keys, np.int64), array,
        np.array(REMOVED, np.int64), hashed=True, dtype=storage, width=width,
    )  # fmt: skip
    native.build_overlay(path, base, None, [path + ".delta"])
    rows |= dict(zip(keys, _stored_values(values, storage), strict=True))
    for key in REMOVED:
        del rows[key]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("hashed"), "test_fused_lookup_hashed")


some_table = st.tuples(st.sampled_from(WIDTHS), st.sampled_from(STORAGES), st.booleans())
some_keys = st.one_of(st.sampled_from([*KEYS.tolist(), *ADDED, *UNKNOWN]), st.integers(INT64.min, INT64.max))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=some_table, keys=st.lists(some_keys, max_size=40), wide=st.booleans())
def test_hash_lookup_against_a_dictionary(tables, which, keys, wide):
    table = tables.tables[which]
    shaped = np.array(keys, np.int64).reshape(-1, 1) if wide else np.array(keys, np.int64)
    got = tables.bench.hash_rows(table.index, shaped, table.dim, table.storage)
    assert got.shape == (*shaped.shape, table.dim)
    same_bits(got, table.lookup(shaped))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=property_cases.cases(), which=some_table, packed=st.booleans(), turn=st.integers(0, 60))
def test_the_same_bits_as_over_a_static_table(tables, case, which, packed, turn):
    fields, _, inputs = case
    table = tables.tables[which]
    before = (Step("prune_negative"),) if fields.get("steps") == (Step("prune_negative"),) else ()
    number = (np.asarray(inputs["ids"], np.int64) % property_cases.ROWS + turn) % len(POOL)
    keys = POOL[number]
    fields = {k: v for k, v in fields.items() if k not in ("steps", "fill_id")} | {
        "name": "f", "table_width": table.dim, "table_dtype": "float32", "ids": "ids",
    }  # fmt: skip
    # A fill id is a key, too.
    fill = turn % len(POOL)
    fills = [{"fill_id": int(POOL[fill])}, {"fill_id": fill}] if "fill_id" in case[0] else [{}, {}]
    narrow = None if table.storage == "float32" else table.storage
    hashed = LookupSpec(table=table.index, table_rows=0, storage=narrow, steps=(*before, FIND), **fields, **fills[0])
    static = LookupSpec(table=tables.static[which], table_rows=len(POOL), steps=before, **fields, **fills[1])
    ids = np.where(keys < 0, -1, number) if before else number
    want, wrong = _outcome(tables.statics, static, inputs | {"ids": ids}, packed)
    got, said = _outcome(tables.bench, hashed, inputs | {"ids": keys}, packed)
    assert said == wrong
    same_bits(got, want)


def _outcome(bench: LookupBench, spec: LookupSpec, inputs: dict[str, Any], packed: bool) -> tuple[np.ndarray, str]:
    """The result and "", or nothing and what is wrong (without the words that say where)."""
    try:
        return bench.run(spec, inputs, packed=packed), ""
    except tf.errors.InvalidArgumentError as error:
        return np.zeros(0, np.float32), str(error).partition("): ")[2]


def test_lookups_that_share_their_keys(tables):
    """Two lookups of one table resolve the keys once; those of another table, or with a prune step, on their own."""
    one, two = tables.tables[16, "float32", True], tables.tables[16, "float32", False]
    keys = np.concatenate([POOL, POOL[::-1]]).reshape(-1, 2)
    common: dict[str, Any] = {"table_rows": 0, "table_width": 16, "table_dtype": "float32", "ids": "ids"}
    specs = [
        LookupSpec(name=f"f{k}", table=t.index, form="dense", combiner=c, steps=steps, empty="zeros", **common)
        for k, (t, c, steps) in enumerate([
            (one, "mean", (FIND,)), (one, "sum", (FIND,)), (two, "sum", (FIND,)),
            (one, "sum", (Step("prune_negative"), FIND)), (one, "sum", (FIND,)),
        ])
    ]  # fmt: skip
    lookups = [(spec, Placement(0, 16 * k)) for k, spec in enumerate(specs)]
    output = OutputSpec(form="rows", columns=16 * len(specs), dtype="float32")
    got = tables.bench.run_group(lookups, [output], {"ids": keys}, [tf.float32])[0]
    for k, spec in enumerate(specs):
        same_bits(got[:, 16 * k : 16 * k + 16], tables.bench.run(spec, {"ids": keys}))


@pytest.mark.parametrize("packed", [False, True])
def test_a_dropped_key_stays_dropped_where_the_overlay_has_its_row(tables, packed):
    table = tables.tables[16, "float32", True]
    dropped = [key for key in CHANGED + ADDED if key < 0]
    keys = np.array([*dropped, 15, 2**50, *dropped], np.int64)
    spec = LookupSpec(
        name="f", table=table.index, table_rows=0, table_width=16, table_dtype="float32", ids="ids", form="ragged",
        rows="rows", combiner="sum", steps=(Step("prune_negative"), FIND), empty="zeros",
    )  # fmt: skip
    splits = np.array([0, len(dropped) + 2, len(keys)], np.int32)
    got = tables.bench.run(spec, {"ids": keys, "rows": splits}, packed=packed)
    np.testing.assert_array_equal(got, [table.rows[15] + table.rows[2**50], np.zeros(16, np.float32)])


def test_strings_are_keys_by_their_fingerprint(tables, tmp_path):
    from tfctr.embedding.keys import fingerprint

    texts = np.array(["", "a", "user_17", "\u00fc" * 40], dtype=object)
    keys = fingerprint(tf.constant(texts)).numpy()
    bench = LookupBench(tmp_path, "test_strings_are_keys")
    rows = np.arange(16, dtype=np.float32).reshape(4, 4) + 1
    index, _ = bench.hash_table(keys, rows, np.zeros(4, np.float32))
    spec = LookupSpec(
        name="f", table=index, table_rows=0, table_width=4, table_dtype="float32", form="dense", ids="ids",
        steps=(Step("fingerprint"), FIND),
    )  # fmt: skip
    asked = np.array([*texts[::-1], "nobody"], dtype=object)
    for packed in (False, True):
        got = bench.run(spec, {"ids": asked}, packed=packed, form="like")
        same_bits(got, np.concatenate([rows[::-1], np.zeros((1, 4), np.float32)]))


def test_static_tables_with_an_overlay(tmp_path):
    """Ids of changed rows find the new ones, the others and the errors are what they were."""
    bench = LookupBench(tmp_path, "test_static_overlay")
    table = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)
    index = bench.table(table)
    changed, new = np.array([0, 7, 39]), -np.ones((3, 8), np.float32)
    path = str(tmp_path / "overlay")
    native = library.native()
    native.write_delta_file(
        path + ".delta", "table_0", changed, new, np.zeros(0, np.int64), hashed=False, dtype="float32", width=8,
        table_rows=40,
    )  # fmt: skip
    native.build_overlay(path, bench.path(index), None, [path + ".delta"])
    after = table.copy()
    after[changed] = new
    fields: dict[str, Any] = {
        "name": "f", "table": index, "table_rows": 40, "table_width": 8, "table_dtype": "float32", "ids": "ids",
    }  # fmt: skip
    gather = LookupSpec(form="dense", **fields)
    wrapped = LookupSpec(form="dense", steps=(Step("wrap_negative", ("40",)),), **fields)
    ids = np.array([0, 1, 7, 39, 38])
    for overlays, rows in (({}, table), ({index: path}, after), ({}, table)):
        bench.overlay(overlays)
        same_bits(bench.run(gather, {"ids": ids}, form="like"), rows[ids])
        same_bits(bench.run(wrapped, {"ids": ids - 40}, form="like"), rows[ids])
        for bad in (-1, 40, 41, 512, 2**40):
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"id {bad} at row 1 is not in \[0, 40\)"):
                bench.run(gather, {"ids": np.array([3, bad])}, form="like")


def test_errors_of_the_hash_lookup(tables):
    table = tables.tables[8, "int8", True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of 8 numbers stored as int8, expected 9 stored"):
        tables.bench.hash_rows(table.index, [1], 9, "int8")
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 stored as float32"):
        tables.bench.hash_rows(table.index, [1], 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="file 1000 of the store"):
        tables.bench.hash_rows(1000, [1], 8)
    static = tables.static[8, "int8", True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not a hash file"):
        tables.statics.hash_rows(static, [1], 8)
