"""Random small graphs: whatever the pass makes of them gives the same numbers."""

import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.testing import apply, graph_item
from tests.graph_opt.graphs import placeholder, table
from tests.graph_opt.split.helpers import assert_same_numbers, split

RNG = np.random.default_rng(5)
USER = {
    "u0": RNG.normal(size=(7, 3)).astype(np.float32),
    "u1": RNG.normal(size=(7, 2, 4)).astype(np.float32),
    "uk": RNG.integers(0, 9, (7, 2)),
}
ITEM = {
    "i0": RNG.normal(size=(7, 4)).astype(np.float32),
    "i1": RNG.normal(size=(7, 3, 4)).astype(np.float32),
    "ik": RNG.integers(0, 9, (7,)),
}
T = tf.Tensor
Pool = list[T]


def vector(width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=width).astype(np.float32)


def matrix(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32) / np.float32(rows**0.5)


class Maker:
    """Adds tensors to a pool, one drawn operation after the other."""

    def __init__(self, pool: Pool, ids: Pool, draw: Callable[[st.SearchStrategy], int]) -> None:
        self.pool = pool
        self.ids = ids
        self.number = lambda high: draw(st.integers(0, high))

    def pick(self, rank: int | None = None) -> T:
        fitting = [t for t in self.pool if rank is None or t.shape.rank == rank]
        return fitting[self.number(len(fitting) - 1)]

    def like(self, x: T) -> T:
        fitting = [t for t in self.pool if t.shape.as_list() == x.shape.as_list()]
        return fitting[self.number(len(fitting) - 1)]

    def step(self) -> None:
        steps = [
            self.unary, self.constant, self.concat, self.fields, self.stack, self.matmul, self.reduce, self.flatten,
            self.unflatten, self.two, self.slices, self.softmax, self.transpose, self.statistics, self.by_shape,
            self.einsum, self.positions, self.text,
        ]  # fmt: skip
        made = steps[self.number(len(steps) - 1)]()
        if made is not None and all(size is None or size < 40 for size in made.shape.as_list()):
            self.pool.append(made)

    def unary(self) -> T:
        ops = [tf.nn.relu, tf.tanh, tf.negative, tf.identity, tf.abs, tf.sigmoid]
        return ops[self.number(5)](self.pick())

    def constant(self) -> T:
        x = self.pick()
        c = vector(x.shape[-1], self.number(5))
        return [lambda: x + c, lambda: x * c, lambda: c - x, lambda: x / (np.abs(c) + 1), lambda: x - 0.5][
            self.number(4)
        ]()

    def concat(self) -> T:
        return tf.concat([self.pick(2) for _ in range(self.number(2) + 1)], 1)

    def fields(self) -> T | None:
        x, y = self.pick(3), self.pick(3)
        return tf.concat([x, y], 1) if x.shape[2] == y.shape[2] else None

    def stack(self) -> T:
        x = self.pick(2)
        return tf.stack([x, self.like(x), self.like(x)], 1 + self.number(1))

    def matmul(self) -> T:
        x = self.pick(2)
        return tf.matmul(x, matrix(x.shape[1], 1 + self.number(4), self.number(5)))

    def reduce(self) -> T:
        x = self.pick(3)
        op = [tf.reduce_sum, tf.reduce_mean, tf.reduce_max][self.number(2)]
        axis, keep = 1 + self.number(1), bool(self.number(1))
        return op(x, axis, keepdims=keep)

    def flatten(self) -> T:
        x = self.pick(3)
        return tf.reshape(x, [-1, x.shape[1] * x.shape[2]])

    def by_shape(self) -> T:
        x = self.pick(3)
        return tf.reshape(x, tf.stack([tf.shape(self.pick())[0], x.shape[1] * x.shape[2]]))

    def unflatten(self) -> T | None:
        x = self.pick(2)
        return tf.reshape(x, [-1, x.shape[1] // 2, 2]) if x.shape[1] % 2 == 0 else None

    def two(self) -> T:
        x = self.pick()
        y = self.like(x)
        return [tf.add, tf.subtract, tf.multiply, tf.maximum][self.number(3)](x, y)

    def slices(self) -> T:
        x = self.pick()
        width = x.shape[1]
        start = self.number(width - 1)
        return x[:, start : start + 1 + self.number(width - start - 1)]

    def softmax(self) -> T:
        return tf.nn.softmax(self.pick())

    def transpose(self) -> T:
        return tf.transpose(self.pick(3), [0, 2, 1])

    def statistics(self) -> T:
        x = self.pick()
        return [lambda: x - tf.reduce_mean(x, 0), lambda: x / (1 + tf.cast(tf.shape(x)[0], tf.float32))][
            self.number(1)
        ]()

    def text(self) -> T:
        """Ids as text, hashed."""
        ids = self.ids[self.number(1)]
        column = ids if ids.shape.rank == 1 else ids[:, self.number(1)]
        return tf.one_hot(tf.strings.to_hash_bucket_fast(tf.strings.as_string(column), 5), 5)

    def einsum(self) -> T:
        x = self.pick(3)
        seed = self.number(5)
        if self.number(1):
            return tf.einsum("bfd,dk->bfk", x, matrix(x.shape[2], 3, seed))
        return tf.einsum("bfd,fk->bdk", x, matrix(x.shape[1], 3, seed))

    def positions(self) -> T:
        x = self.pick(3)
        return tf.tensordot(x, matrix(x.shape[2], 2, self.number(5)), [[2], [0]])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_graphs_keep_their_numbers(data: st.DataObject) -> None:
    def build(tables: object) -> dict[str, T]:
        ids = [placeholder(tf.int64, [None, 2], "uk"), placeholder(tf.int64, [None], "ik")]
        pool: Pool = [
            placeholder(tf.float32, [None, 3], "u0"),
            placeholder(tf.float32, [None, 2, 4], "u1"),
            placeholder(tf.float32, [None, 4], "i0"),
            placeholder(tf.float32, [None, 3, 4], "i1"),
            *(tf.gather(tables["e"], k) for k in ids),  # type: ignore[index]
        ]
        maker = Maker(pool, ids, data.draw)
        for _ in range(data.draw(st.integers(3, 14))):
            maker.step()
        gain = tf.matmul(tf.concat([pool[0], pool[2]], 1), matrix(7, 2, 0))
        return {"last": pool[-1], "before": pool[-2], "gain": gain}

    with tempfile.TemporaryDirectory() as folder:
        item = graph_item(build, tables={"e": table(9, 4)}, work_dir=folder)  # type: ignore[arg-type]
        if data.draw(st.booleans()):
            item, _ = apply(fuse_lookups, item)
        device = "/GPU:0" if data.draw(st.booleans()) else ""
        after, outcome = split(item, "u*", device_map={"dense": device} if device else None)
        assert outcome.fired == 1, outcome.refused
        assert_same_numbers(after, USER, ITEM, patterns=((3, [2, 0, 1, 1, 0]), (1, [0, 0]), (2, [])))
