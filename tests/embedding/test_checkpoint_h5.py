"""Tables in Keras' files, without Keras: the store is a dictionary, as Keras' stores look to a layer."""

import json
from typing import Any

import numpy as np
import pytest

import tfctr
from tests.embedding.checkpoint_models import table_arrays
from tfctr.embedding import h5
from tfctr.errors import CorruptFileError, InputError, VersionError

KEYS = np.array([5, -1, 2**63 - 1, 12], np.int64)


def make(dim: int = 3, **options: Any) -> tfctr.EmbeddingVariable:
    options = {
        "optimizer": tfctr.optimizers.RowWiseAdagrad(0.1),
        "admission": tfctr.CounterAdmission(2),
        "eviction": tfctr.StepEviction(100),
        **options,
    }
    return tfctr.EmbeddingVariable(dim, "items", **options)


def filled(**options: Any) -> tfctr.EmbeddingVariable:
    table = make(**options)
    values = np.arange(len(KEYS) * table.dim, dtype=np.float32).reshape(len(KEYS), -1)
    tfctr.warm_start.from_numpy(table, KEYS, values, frequency=np.arange(2, 6))
    table.lookup([100, 101], training=True)
    return table


def saved(table: Any) -> dict[str, Any]:
    store: dict[str, Any] = {}
    h5.save_own_variables(table, store)
    return store


def assert_refused(store: dict[str, Any], table: Any, error: type[Exception], match: str) -> None:
    before = table_arrays(table)
    with pytest.raises(error, match=match):
        h5.load_own_variables(table, store)
    for name, array in table_arrays(table).items():
        np.testing.assert_array_equal(array, before[name])


def edited(store: dict[str, Any], **changes: Any) -> dict[str, Any]:
    told = json.loads(store["table"].tobytes()) | changes
    return store | {"table": np.frombuffer(json.dumps(told).encode(), np.uint8)}


def test_everything_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled()
    whole = saved(table)
    assert "keys_00001" not in whole
    monkeypatch.setattr(h5, "CHUNK_ROWS", 2)
    store = saved(table)
    assert "keys_00001" in store
    for each in (whole, store):
        back = make(shards=2)
        back.lookup([100, 100, 7, 7], training=True)  # goes
        h5.load_own_variables(back, each)
        expected, found = table_arrays(table), table_arrays(back)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        back.lookup([100], training=True)  # its count came back: this is the second
        assert back.contains([100, 101]).tolist() == [True, False]


def test_a_bloom_filter_comes_back() -> None:
    bloom = tfctr.BloomAdmission(2, expected_keys=50)
    table = filled(admission=bloom)
    back = make(admission=bloom)
    h5.load_own_variables(back, saved(table))
    back.lookup([100], training=True)
    assert back.contains([100]).tolist() == [True]
    assert_refused(saved(table), make(), InputError, "'items'.*Bloom.*counters=False")


def test_parts_left_out() -> None:
    table = filled()
    with tfctr.checkpoint_options(slots=False, counters=False, steps=False):
        store = saved(table)
    assert sorted(store) == ["keys_00000", "table", "values_00000"]
    for each, options in ((store, {}), (saved(table), {"slots": False, "counters": False, "steps": False})):
        back = make(optimizer=tfctr.optimizers.Adam(0.1))
        with tfctr.checkpoint_options(**options):
            h5.load_own_variables(back, each)
        assert back.size() == 4
        assert back.counters() == 0
        assert back.frequency(KEYS).tolist() == [2] * 4


def test_what_does_not_fit_is_refused_by_name() -> None:
    store = saved(filled())
    assert_refused(store, make(4), InputError, "'items': the file's table has dim 3, expected 4")
    adam = make(optimizer=tfctr.optimizers.Adam(0.1))
    assert_refused(store, adam, InputError, "slots accumulator, the table has momentum, velocity.*slots=False")
    assert_refused(store, make(optimizer=None), InputError, "slots accumulator, the table has none.*slots=False")
    assert_refused(store, make(key_dtype="string"), InputError, "keys are int64, expected string")
    assert_refused({}, make(), InputError, "'items': the file has no rows of it, but nothing")
    assert_refused(edited(store, format=2), make(), VersionError, "format 2.*newer tfctr.*up to 1")
    assert_refused(edited(store, rows=5), make(), CorruptFileError, "says 5 rows, but has 4")
    assert_refused(edited(store, chunks=2), make(), CorruptFileError, "lacks the array 'keys_00001'")
    assert_refused(store | {"table": store["table"][:-5]}, make(), CorruptFileError, "description")
    doubles = edited(store, checksums={}) | {"values_00000": store["values_00000"].astype(np.float64)}
    assert_refused(doubles, make(), CorruptFileError, r"'values_00000' is float64 \[4, 3\], expected float32 \[4, 3\]")


def test_damaged_arrays_are_noticed() -> None:
    """HDF5 as Keras writes it has no checksums, so a flipped bit would be a wrong row."""
    store = saved(filled())
    names = set(store) - {"table"}
    assert {"keys_00000", "values_00000", "slot_accumulator_00000", "frequency_00000", "counter_counts"} <= names
    for name in names:
        damaged = store[name].copy()
        damaged.reshape(-1).view(np.uint8)[-1] ^= 1
        table = make()
        assert_refused(store | {name: damaged}, table, CorruptFileError, f"'items': .*'{name}' is damaged")
        assert_refused(
            {k: v for k, v in store.items() if k != name}, table, CorruptFileError, f"lacks the array '{name}'"
        )
