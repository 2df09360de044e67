"""Options of embedding variables: what they refuse, and the configuration that the table gets."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfctr
from tfctr.embedding import optimizers, options, table_config
from tfctr.errors import UsageError

OPTIMIZERS = [getattr(optimizers, name) for name in optimizers.__all__ if name != "Optimizer"]


def config_of(name: str = "users", **given: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "initializer": options.Uniform(),
        "seed": None,
        "default_value": 0.0,
        "optimizer": None,
        "admission": None,
        "eviction": None,
        "evict_every_steps": 0,
        "evict_on_save": False,
        "record_frequency": False,
        "record_last_step": False,
        "record_changes": False,
        "max_bytes": None,
        "expected_rows": 0,
        "shards": None,
    } | given
    dim = arguments.pop("dim", 3)
    return json.loads(
        table_config.table_options(name, dim, **arguments).to_json(lambda keys: [int(key) for key in keys])
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tfctr.StepEviction(1.5), "StepEviction: steps_to_live is 1.5, expected a whole number >= 0"),
        (lambda: tfctr.StepEviction(True), "StepEviction: steps_to_live is True"),
        (lambda: tfctr.StepEviction(-1), "StepEviction: steps_to_live is -1"),
        (lambda: tfctr.StepEviction(3, min_rows=-1), "StepEviction: min_rows is -1"),
        (
            lambda: tfctr.StepEviction(3, protected_keys="abc"),
            "StepEviction: protected_keys is 'abc', expected a sequence",
        ),
        (lambda: tfctr.StepEviction(3, protected_keys=[1.5]), "StepEviction: protected_keys is 1.5"),
        (lambda: tfctr.StepEviction(3, protected_keys=[2**63]), "keys within int64"),
        (lambda: tfctr.TtlEviction(float("nan")), "TtlEviction: seconds is nan, expected a finite number >= 0"),
        (lambda: tfctr.L2Eviction(0), "L2Eviction: threshold is 0, expected a finite number > 0"),
        (lambda: tfctr.CapacityEviction(0), "CapacityEviction: max_rows is 0"),
        (lambda: tfctr.CapacityEviction(5, "fifo"), 'CapacityEviction: order is \'fifo\', expected "lru" or "lfu"'),
        (
            lambda: tfctr.CapacityEviction(5, min_rows=6),
            "CapacityEviction: min_rows is 6, expected at most max_rows (5)",
        ),
        (lambda: tfctr.CounterAdmission(0), "CounterAdmission: min_count is 0, expected a whole number >= 1"),
        (lambda: tfctr.CounterAdmission("3"), "CounterAdmission: min_count is '3'"),
        (
            lambda: tfctr.BloomAdmission(300, 10),
            "BloomAdmission: min_count is 300, expected a whole number >= 1 and <= 255",
        ),
        (lambda: tfctr.BloomAdmission(3, 0), "BloomAdmission: expected_keys is 0"),
        (lambda: tfctr.BloomAdmission(3, 10, 1.0), "BloomAdmission: false_positive_rate is 1.0"),
        (
            lambda: tfctr.BloomAdmission(3, 10, counter_bits=7),
            "BloomAdmission: counter_bits is 7, expected 8, 16 or 32",
        ),
        (lambda: tfctr.Uniform(1, 1), "Uniform: high is 1, expected a finite number > 1"),
        (lambda: tfctr.Normal(stddev=0), "Normal: stddev is 0"),
        (lambda: tfctr.TruncatedNormal(mean=float("inf")), "TruncatedNormal: mean is inf"),
        (lambda: tfctr.Constant("0"), "Constant: value is '0'"),
        (
            lambda: tfctr.optimizers.Adam("fast"),
            "Adam: learning_rate is 'fast', expected a number, a schedule or \"model\"",
        ),
        (lambda: tfctr.optimizers.SGD(-0.1), "SGD: learning_rate is -0.1"),
        (lambda: tfctr.optimizers.Adam(beta_1=1), "Adam: beta_1 is 1, expected a finite number >= 0 and < 1"),
        (lambda: tfctr.optimizers.Ftrl(learning_rate_power=0.5), "Ftrl: learning_rate_power is 0.5"),
        (lambda: tfctr.optimizers.Ftrl(l1_regularization_strength=-1), "Ftrl: l1_regularization_strength is -1"),
        (
            lambda: tfctr.optimizers.SGD(clip_norm=1, clip_value=2),
            "SGD: clip_norm is 1.0, expected None, because clip_value",
        ),
        (lambda: tfctr.optimizers.SGD(clip_row_norm=0), "SGD: clip_row_norm is 0"),
        (lambda: tfctr.ManualClock(-1), "ManualClock: seconds is -1"),
        (lambda: config_of(dim=0), "embedding variable 'users': dim is 0, expected a whole number >= 1"),
        (lambda: config_of(dim=2.0), "embedding variable 'users': dim is 2.0"),
        (
            lambda: config_of(dim=[4, 8]),
            "'users': dim is [4, 8], expected one whole number: all rows of a table have one dim",
        ),
        (lambda: config_of(dim=len), "a dimension per key is not supported"),
        (lambda: config_of(seed=-1), "embedding variable 'users': seed is -1"),
        (lambda: config_of(initializer="uniform"), "initializer is 'uniform', expected Uniform, Normal"),
        (lambda: config_of(initializer=options.Initializer()), "expected Uniform, Normal"),
        (lambda: config_of(optimizer="adagrad"), "optimizer is 'adagrad', expected tfctr.optimizers"),
        (lambda: config_of(admission=3), "admission is 3, expected CounterAdmission"),
        (lambda: config_of(eviction="lru"), "eviction is 'lru', expected StepEviction"),
        (lambda: config_of(eviction=[tfctr.StepEviction(1), None]), "eviction is None, expected StepEviction"),
        (lambda: config_of(evict_every_steps=5), "evict_every_steps is 5, expected 0 without an eviction policy"),
        (lambda: config_of(evict_on_save=True), "evict_on_save is True, expected False without an eviction policy"),
        (lambda: config_of(record_frequency=1), "record_frequency is 1, expected True or False"),
        (lambda: config_of(default_value=[1, 2]), "default_value is [1, 2], expected a finite number, or 3 of them"),
        (lambda: config_of(default_value=float("nan")), "default_value is nan"),
        (lambda: config_of(default_value=1e39), "default_value is 1e+39"),
        (lambda: config_of(max_bytes=-1), "max_bytes is -1"),
        (lambda: config_of(shards=0), "shards is 0, expected a whole number >= 1 and <= 4096"),
        (lambda: table_config.check_name(""), "name is ''"),
        (lambda: table_config.check_name("a b"), "name is 'a b', expected a name of letters"),
        (lambda: table_config.check_name("/a"), "name is '/a'"),
    ],
)
def test_bad_values_are_refused_where_they_are_given(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make()


def test_more_expected_rows_than_memory_are_refused_before_any_is_taken() -> None:
    with pytest.raises(UsageError, match="'users'.* an index for 1099511627776 rows .* this machine has"):
        tfctr.EmbeddingVariable(3, "users", expected_rows=2**40)


def test_the_configuration_says_what_was_asked_for() -> None:
    told = config_of(
        optimizer=tfctr.optimizers.Adagrad(0.05, epsilon=1, clip_norm=2),
        admission=tfctr.CounterAdmission(np.int64(3)),
        eviction=[
            tfctr.TtlEviction(60),
            tfctr.CapacityEviction(10, "lfu", min_rows=2, protected_keys=[7, -(2**63), 7]),
        ],
        evict_every_steps=5,
        default_value=[0, 0.1, 1],
        seed=2**64 - 1,
        max_bytes=1000,
    )
    assert told == {
        "format": 1,
        "name": "users",
        "dim": 3,
        "shards": 16,
        "seed": "18446744073709551615",
        "initializer": {"kind": "uniform", "low": -0.05, "high": 0.05},
        "default_value": [0.0, float(np.float32(0.1)), 1.0],
        "optimizer": {"kind": "adagrad", "initial_accumulator_value": 0.1, "epsilon": 1.0},
        "clip": {"kind": "norm", "limit": 2.0},
        "admission": {"kind": "counter", "min_count": 3},
        "eviction": [
            {"kind": "ttl", "seconds": 60.0, "min_rows": 0, "protected_keys": []},
            {"kind": "capacity", "max_rows": 10, "order": "lfu", "min_rows": 2, "protected_keys": [str(-(2**63)), "7"]},
        ],
        "evict_every_steps": 5,
        "evict_on_save": False,
        "frequency": True,
        "last_step": False,
        "last_time": True,
        "max_bytes": 1000,
        "expected_rows": 0,
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, (False, False, False)),
        ({"record_frequency": True}, (True, False, False)),
        ({"admission": tfctr.BloomAdmission(3, 100)}, (True, False, False)),
        ({"eviction": tfctr.StepEviction(3)}, (False, True, False)),
        ({"eviction": tfctr.TtlEviction(3)}, (False, False, True)),
        ({"eviction": tfctr.L2Eviction(3)}, (False, False, False)),
        ({"eviction": tfctr.CapacityEviction(3)}, (False, True, False)),
        ({"eviction": tfctr.CapacityEviction(3, "lfu")}, (True, False, False)),
    ],
)
def test_a_row_keeps_only_what_an_option_needs(given: dict[str, Any], kept: tuple[bool, bool, bool]) -> None:
    told = config_of(**given)
    assert (told["frequency"], told["last_step"], told["last_time"]) == kept


def test_numpy_numbers_are_as_good_as_pythons() -> None:
    told = config_of(
        dim=np.int32(3),
        seed=np.uint64(2**64 - 1),
        initializer=tfctr.Normal(np.float32(0.5), 1),
        optimizer=tfctr.optimizers.AdagradDecay(
            np.float32(0.5), accumulator_decay_steps=np.int64(7), epsilon=1, clip_norm=np.float16(2)
        ),
        admission=tfctr.BloomAdmission(np.uint8(3), np.int64(100), np.float64(0.5), np.int64(8), np.int32(9)),
        eviction=[
            tfctr.StepEviction(np.int64(5), min_rows=np.int8(1), protected_keys=np.array([3, -1])),
            tfctr.TtlEviction(np.float32(1.5)),
            tfctr.L2Eviction(1),
            tfctr.CapacityEviction(np.int64(9)),
        ],
        evict_every_steps=np.int64(2),
        default_value=np.float32(1),
    )
    assert (told["dim"], told["seed"], told["initializer"]["mean"]) == (3, str(2**64 - 1), 0.5)
    assert told["eviction"][0]["protected_keys"] == ["-1", "3"] and told["eviction"][2]["threshold"] == 1.0
    assert tfctr.TtlEviction(60) == tfctr.TtlEviction(60.0) and isinstance(tfctr.TtlEviction(60).seconds, float)


def test_seeds_differ_between_names_and_not_between_runs() -> None:
    assert config_of("users")["seed"] == config_of("users")["seed"] != config_of("items")["seed"]
    assert config_of("users", seed=0)["seed"] == "0"


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_optimizers_are_values(kind: type) -> None:
    one = kind()
    assert one == kind() and hash(one) == hash(kind()) and kind("model").learning_rate == "model"
    assert kind(lambda step: step * 2.0).rate_at(3) == 6.0
    assert set(one.narrow_slots) <= set(one.slot_names)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.learning_rate = 1.0
    told = one.config()
    assert isinstance(told.pop("kind"), str) and "learning_rate" not in told
    assert all(isinstance(value, int if name.endswith("_steps") else float) for name, value in told.items())


def test_options_need_no_tensorflow() -> None:
    code = """
import sys, tfctr
tfctr.optimizers.Adagrad(0.05), tfctr.CounterAdmission(3), tfctr.StepEviction(10), tfctr.Uniform(), tfctr.ManualClock()
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_documented() -> None:
    for name in tfctr.__all__:
        assert getattr(tfctr, name) is not None
        assert name.startswith("__") or getattr(tfctr, name).__doc__, name
    assert set(tfctr.__all__) <= set(dir(tfctr))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("device", "/GPU:0", "device is '/GPU:0', expected no such option: tables lie in the memory of the host"),
        ("devices", ["/GPU:0"], "never on a GPU"),
        ("complementary_strategy", "Q-R", "multi-hash tables, .* are not supported"),
        ("embedding_block_num", 4, "a dimension per key is not supported"),
    ],
)
def test_what_is_out_of_scope_is_refused_by_name(option: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"embedding variable 'users': {option} is .*"):
        tfctr.EmbeddingVariable(4, "users", **{option: value})
    with pytest.raises(UsageError, match=words):
        tfctr.keras.Embedding(4, name="users", **{option: value})
    with pytest.raises(TypeError, match="'users': got an unexpected keyword argument 'admision'"):
        tfctr.EmbeddingVariable(4, "users", admision=None)
