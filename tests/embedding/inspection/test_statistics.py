"""Statistics of a table: each number against NumPy over the exported rows."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.inspection.tables import fill, make, save
from tfctr.embedding.inspection import histogram, statistics
from tfctr.embedding.inspection.histogram import Ages, Bar, Counts, Magnitudes
from tfctr.embedding.inspection.sources import Table, open_source
from tfctr.embedding.inspection.statistics import Now

ROWS = 70_000  # above 65,536 a table is stored in slices


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[tfctr.EmbeddingVariable, Table]:
    table = make(record_frequency=True)
    random = np.random.default_rng(3)
    keys = random.permutation(ROWS * 3)[:ROWS] - ROWS
    values = random.normal(size=(ROWS, 4)).astype(np.float32)
    values[:100] = 0
    values[100:250] *= 1e-5
    fill(table, keys, values=values, counters={10**9 + k: (k % 5 + 1, 1, 1) for k in range(1000)})
    prefix = save(tmp_path_factory.mktemp("big") / "ckpt", 120, users=table)
    return table, open_source(prefix).table("users")


def test_against_numpy(big):
    table, saved = big
    rows = table.export(slots=True)
    told = statistics.collect(saved, now=Now(None, 6_000_000), top=7, below_norm=1e-3)
    norms = np.sqrt((rows.values.astype(np.float64) ** 2).sum(1))
    assert (told.rows, told.dim, told.norms.total) == (ROWS, 4, ROWS)
    assert told.norms.zeros == np.count_nonzero(norms == 0) == told.dead.zero
    assert told.dead.below_norm == np.count_nonzero(norms < 1e-3)
    assert told.dead.never_trained == 0
    np.testing.assert_allclose([told.norms.least, told.norms.most], [norms.min(), norms.max()])
    for counts, column in ((told.frequency, rows.frequency), (told.age_steps, 120 - rows.last_step)):
        assert (counts.least, counts.most, counts.sum) == (column.min(), column.max(), column.sum())
        assert_bars(counts.bars(), column)
    assert_bars(told.norms.bars(), norms)
    ages = 6_000_000 - rows.last_time_ms
    assert (told.age_time.least, told.age_time.most) == (ages.min(), ages.max())
    assert_bars(told.age_time.bars(), ages)
    order = np.lexsort((rows.keys, -rows.frequency))[:7]
    assert [one.key for one in told.top] == rows.keys[order].tolist()
    assert [one.frequency for one in told.top] == rows.frequency[order].tolist()
    assert told.now == Now(120, 6_000_000)
    (slot,) = told.slots
    assert (slot.name, slot.width, slot.initial) == ("accumulator", 4, 0)
    np.testing.assert_allclose(slot.mean, rows.slots["accumulator"].mean(), rtol=1e-5)
    assert (told.counter_rows, told.counters.sum) == (1000, 3000)
    # Memory: rows and counters with their index entries; the live table's index has room to grow.
    assert 0.5 * table.bytes() < told.memory < table.bytes()


def assert_bars(bars: list[Bar], numbers: np.ndarray) -> None:
    """Every number lies in one bar, and the bars' counts are right."""
    assert sum(bar.count for bar in bars) == len(numbers)
    for bar in bars:
        if bar.low == bar.high:
            inside = numbers == bar.low
        else:
            high = np.inf if bar.high is None else bar.high
            edge = 1e-12 * abs(high) if high != np.inf else 0  # of a bar of magnitudes, by rounding of the logarithm
            inside = (numbers >= bar.low - edge) & (numbers < high - edge) & ((numbers > 0) | (bar.low == 0))
        assert np.count_nonzero(inside) == bar.count, bar


def test_rows_that_were_never_trained(tmp_path):
    table = make(admission=None, initializer=tfctr.Normal(0.0, 0.3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.lookup(np.arange(10), training=True) ** 2)
    table.lookup(np.arange(10, 40), training=True)
    table.apply_gradients(tape.gradient(loss, table.handle))
    told = statistics.collect(open_source(save(tmp_path / "ckpt", users=table)).table("users"))
    assert told.dead.never_trained == 30
    assert told.slots[0].initial == 30


def test_rows_that_are_not_finite(tmp_path):
    """Only a file that something else wrote can hold them."""
    from tfctr.core import library

    writer = library.native().CheckpointWriter(tmp_path / "ckpt")
    values = np.ones((4, 2), np.float32)
    values[1, 0], values[2, 1] = np.nan, np.inf
    writer.add("t/keys", np.arange(4))
    writer.add("t/values", values)
    writer.add_text("t/config", json.dumps({"format": 1, "rows": "4"}).encode())
    writer.finish()
    told = statistics.collect(open_source(tmp_path / "ckpt").table("t"), top=2)
    assert told.dead.not_finite == told.norms.not_finite == 2
    assert told.norms.summary()["mean"] == pytest.approx(2**0.5)
    assert told.memory is None and told.dead.never_trained is None


@pytest.mark.parametrize("rows", [0, 1])
def test_small_tables(tmp_path, rows):
    table = make()
    if rows:
        fill(table, np.array([-(2**63)]))
    told = statistics.collect(open_source(save(tmp_path / "ckpt", users=table)).table("users"))
    assert told.rows == rows == len(told.top)
    assert sum(bar.count for bar in told.norms.bars()) == rows


def test_a_shard_at_a_time(big, monkeypatch):
    """Columns are never read whole: blocks are bounded, whatever the slices are."""
    _, saved = big
    monkeypatch.setattr("tfctr.embedding.inspection.columns.BLOCK_ROWS", 1000)
    reads: list[int] = []
    statistics.collect(saved, progress=reads.append)
    assert max(reads) <= 1000 * 16
    assert sum(reads) == saved.bytes - sum(
        column.bytes for name, column in saved.counters.items() if name != "counters/counts"
    )


class TestHistograms:
    def numbers(self) -> Iterator[np.ndarray]:
        random = np.random.default_rng(0)
        for power in (3, 20, 62):
            yield random.integers(0, 2**power, 1000)

    def test_counts(self):
        for numbers in self.numbers():
            counts = Counts()
            for part in np.array_split(numbers, 3):
                counts.add(part)
            exact = numbers[numbers < 2**53]
            if len(exact) == len(numbers):
                assert_bars(counts.bars(), numbers)
            assert sum(bar.count for bar in counts.bars()) == 1000
            assert (counts.least, counts.most, counts.sum) == (numbers.min(), numbers.max(), sum(numbers.tolist()))

    def test_magnitudes_and_ages(self):
        magnitudes, ages = Magnitudes(), Ages()
        magnitudes.add(np.array([0.0, 1e-30, 0.5, 1.0, 1e10, np.nan, np.inf]))
        assert (magnitudes.zeros, magnitudes.not_finite, magnitudes.most) == (1, 2, 1e10)
        assert sum(bar.count for bar in magnitudes.bars()) == 5
        ages.add(np.array([-5, 0, 59_999, 60_000, histogram.DAY, 400 * histogram.DAY]))
        assert [bar.count for bar in ages.bars()] == [3, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
        words = [histogram.age_words(bar) for bar in ages.bars()]
        assert (words[0], words[1], words[-1]) == ("under 1 min", "1 min - 10 min", "over 365 d")

    def test_words(self):
        assert [Bar(*bar, 1).words() for bar in ((0, 1), (1, 2), (4, 8), (1024, 2048), (0.0, 0.0))] == [
            "0", "1", "4 - 7", "1,024 - 2,047", "0",
        ]  # fmt: skip

    def test_differences_do_not_wrap(self):
        past = np.array([-(2**63), 2**63 - 1, 0])
        assert histogram.saturated_difference(5, past).tolist() == [2**63 - 1, 6 - 2**63, 5]
        assert histogram.saturated_difference(-5, past).tolist() == [2**63 - 5, -(2**63), -5]
