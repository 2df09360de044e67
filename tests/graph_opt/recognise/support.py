"""Small reference graphs made by hand, so that each test shows the ops it is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import tensorflow as tf

from graph_opt.candidates import Candidate, Refusal
from graph_opt.lookup_spec import LookupSpec
from graph_opt.recognise import find_lookups
from graph_opt.view import GraphView
from tfctr.core import library


@dataclasses.dataclass(frozen=True)
class FakeFile:
    """As much of a store file as the recogniser reads."""

    name: str


@dataclasses.dataclass
class Model:
    """Makes nodes of a reference graph inside the current ``tf.Graph``."""

    tables: dict[str, FakeFile] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ops = library.load()
        self._store = self._ops.tfctr_store(container="", shared_name="test")

    def table(self, rows: int = 50, width: int = 4, dtype: tf.DType = tf.float32) -> tf.Tensor:
        index = len(self.tables)
        tensor = self._ops.tfctr_table(self._store, index=index, dtype=dtype, shape=[rows, width])
        self.tables[tensor.op.name] = FakeFile(f"emb_{index}")
        return tensor

    def find(self, keys: tf.Tensor, index: int = 9, default: int = -1) -> tf.Tensor:
        return self._ops.tfctr_vocab_find(self._store, keys, tf.constant(default, tf.int64), index=index)

    @staticmethod
    def input(name: str, shape: list[int | None], dtype: tf.DType = tf.int64) -> tf.Tensor:
        return tf.compat.v1.placeholder(dtype, shape, name=name)

    def sparse(self, name: str = "f", dtype: tf.DType = tf.int64, rank: int = 2) -> tf.SparseTensor:
        """Inputs NAME_indices, NAME_values, NAME_shape."""
        return tf.SparseTensor(
            self.input(f"{name}_indices", [None, rank]),
            self.input(f"{name}_values", [None], dtype),
            self.input(f"{name}_shape", [rank]),
        )

    def ragged(self, name: str = "f", dtype: tf.DType = tf.int64, splits: tf.DType = tf.int64) -> tf.RaggedTensor:
        """Inputs NAME_values, NAME_row_splits."""
        return tf.RaggedTensor.from_row_splits(
            self.input(f"{name}_values", [None], dtype),
            self.input(f"{name}_row_splits", [None], splits),
            validate=False,
        )


def recognise(
    build: Callable[[Model], tf.Tensor | list[tf.Tensor]], avoid: Collection[str] = ()
) -> tuple[list[Candidate], list[Refusal]]:
    """Candidates and refusals of the graph that ``build`` makes; its results are the signature's outputs."""
    with tf.Graph().as_default() as graph:
        model = Model()
        outputs = build(model)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        fetches = [tf.identity(t, name=f"output_{k}").name for k, t in enumerate(outputs)]
        return find_lookups(GraphView(graph.as_graph_def()), fetches, model.tables, avoid=avoid)


def only_spec(build: Callable[[Model], tf.Tensor | list[tf.Tensor]]) -> LookupSpec:
    """The spec of the one lookup in the graph; fails where something was refused."""
    candidates, refusals = recognise(build)
    assert refusals == []
    assert len(candidates) == 1
    return candidates[0].spec


def differs_from_default(spec: LookupSpec) -> dict[str, object]:
    """The fields that say something: without the table's, the name, and what has its default; steps as text."""
    found = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name in ("name", "table", "table_rows", "table_width", "table_dtype"):
            continue
        if value != field.default and value is not None:
            found[field.name] = [s.text() for s in value] if field.name == "steps" else value
    return found
