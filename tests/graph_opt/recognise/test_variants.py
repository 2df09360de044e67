"""Ways to write a lookup that people use, all in one graph: each is recognised as expected and proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.candidates import Candidate, Proof
from graph_opt.item import GraphItem
from graph_opt.prove import prove_all
from graph_opt.recognise import find_lookups
from graph_opt.testing import Tables, graph_item
from graph_opt.view import GraphView

ROWS, WIDTH = 50, 4
SAFE, PLAIN = tf.nn.safe_embedding_lookup_sparse, tf.nn.embedding_lookup_sparse


class Inputs:
    """Tables and inputs of one case; names start with the case's."""

    def __init__(self, tables: Tables, case: str) -> None:
        self._tables, self._case, self._count = tables, case, 0

    def table(self) -> tf.Tensor:
        self._count += 1
        return self._tables[f"{self._case}_{self._count}"]

    def input(self, name: str, shape: list[int | None], dtype: tf.DType = tf.int64) -> tf.Tensor:
        return tf.compat.v1.placeholder(dtype, shape, name=f"{self._case}_{name}")

    def gather(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.table(), ids)

    def sparse(self, rank: int = 2) -> tf.SparseTensor:
        parts = self.input("indices", [None, rank]), self.input("values", [None]), self.input("shape", [rank])
        return tf.SparseTensor(*parts)

    def mask(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.not_equal(ids, 0), tf.float32)[..., tf.newaxis]


Build = Callable[[Inputs], tf.Tensor]
CASES: dict[str, tuple[Build, str]] = {}  # name -> (build, "form combiner denominator steps" of the proven spec)


def case(expected: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES[build.__name__] = (build, expected)
        return build

    return register


@case("dense none count ids_per_row=1")
def sliced_column(m: Inputs) -> tf.Tensor:
    return m.gather(m.input("x", [None, 1]))[:, 0, :]


@case("dense none count ids_per_row=3")
def flat_before_and_after(m: Inputs) -> tf.Tensor:
    return tf.reshape(m.gather(tf.reshape(m.input("x", [None, 3]), [-1])), [-1, 3 * WIDTH])


@case("dense none count select_out_of_range:-9223372036854775808;50;49 select_negative:0")
def clipped(m: Inputs) -> tf.Tensor:
    return m.gather(tf.clip_by_value(m.input("x", [None]), 0, ROWS - 1))


@case("dense none count select_out_of_range:-9223372036854775808;50;49 select_negative:0")
def clipped_int32(m: Inputs) -> tf.Tensor:
    return m.gather(tf.maximum(tf.minimum(m.input("x", [None], tf.int32), ROWS - 1), 0))


@case("dense none count mod:32")
def low_bits(m: Inputs) -> tf.Tensor:
    return m.gather(tf.bitwise.bitwise_and(m.input("x", [None]), 31))


@case("dense none count select_out_of_range:-9223372036854775808;50;0")
def too_large_is_zero(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None])
    return m.gather(tf.where(x < ROWS, x, tf.zeros_like(x)))


@case("dense none count wrap_negative:50")
def wrapped_the_other_way_round(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None])
    return m.gather(tf.where(x >= 0, x, x + ROWS))


@case("dense none count hash_fast:49 add:1 select_equal:0;n1")
def mask_token(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None], tf.string)
    return m.gather(
        tf.where(tf.equal(x, "n1"), tf.constant(0, tf.int64), tf.strings.to_hash_bucket_fast(x, ROWS - 1) + 1)
    )


@case("dense none count as_string hash_fast:49 add:1 select_equal:0;0")
def mask_of_zero_by_product(m: Inputs) -> tf.Tensor:
    x = tf.strings.as_string(m.input("x", [None]))
    mask = tf.cast(tf.not_equal(x, "0"), tf.int64)
    return m.gather((tf.strings.to_hash_bucket_fast(x, ROWS - 1) + 1) * mask)


@case("dense none count mod:50 select_equal:3;7")
def one_id_replaced(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None])
    return m.gather(tf.where(tf.not_equal(x, 7), x % ROWS, 3))


@case("dense none count cast:int32")
def float_ids(m: Inputs) -> tf.Tensor:
    return m.gather(tf.cast(m.input("x", [None, 1], tf.float32), tf.int32))


@case("dense none count max_norm=1.0")
def clipped_rows(m: Inputs) -> tf.Tensor:
    return tf.nn.embedding_lookup(m.table(), m.input("x", [None]), max_norm=1.0)


@case("dense mean positions max_norm=1.0")
def clipped_sequence(m: Inputs) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.embedding_lookup(m.table(), m.input("x", [None, 5]), max_norm=1.0), 1)


@case("dense sum count prune_equal:0 prune_negative")
def sparse_from_dense(m: Inputs) -> tf.Tensor:
    return SAFE(m.table(), tf.sparse.from_dense(m.input("x", [None, 6])), combiner="sum")


@case("sparse sum count")
def plain_sparse_from_dense(m: Inputs) -> tf.Tensor:
    return PLAIN(m.table(), tf.sparse.from_dense(m.input("x", [None, 6])), None, combiner="sum")


@case("sparse mean count")
def fast_lookup(m: Inputs) -> tf.Tensor:
    return PLAIN(m.table(), m.sparse(), None, combiner="mean", allow_fast_lookup=True)


@case("sparse mean count prune_negative")
def rank_three(m: Inputs) -> tf.Tensor:
    return SAFE(m.table(), m.sparse(rank=3), combiner="mean")


@case("segments sum count")
def plain_rank_three(m: Inputs) -> tf.Tensor:
    return PLAIN(m.table(), m.sparse(rank=3), None, combiner="sum")


@case("ragged sum count")
def ragged_from_row_numbers(m: Inputs) -> tf.Tensor:
    parts = m.input("v", [None]), m.input("r", [None]), m.input("n", [])
    return tf.reduce_sum(m.gather(tf.RaggedTensor.from_value_rowids(*parts, validate=False)), 1)


@case("ragged sum count prune_negative")
def ragged_from_lengths(m: Inputs) -> tf.Tensor:
    parts = m.input("v", [None]), m.input("l", [None])
    return SAFE(m.table(), tf.RaggedTensor.from_row_lengths(*parts, validate=False), None, combiner="sum")


@case("ragged sum count")
def ragged_from_padded(m: Inputs) -> tf.Tensor:
    return tf.reduce_sum(m.gather(tf.RaggedTensor.from_tensor(m.input("x", [None, 5]), padding=0)), 1)


@case("ragged sum count")
def ragged_by_sequence_lengths(m: Inputs) -> tf.Tensor:
    ragged = tf.RaggedTensor.from_tensor(m.input("x", [None, 5]), lengths=m.input("l", [None]))
    return PLAIN(m.table(), ragged, None, combiner="sum")


@case("segments mean count hash_fast:50 prune_negative")
def split_strings(m: Inputs) -> tf.Tensor:
    words = tf.strings.split(m.input("text", [None], tf.string), ",")
    return SAFE(m.table(), tf.strings.to_hash_bucket_fast(words, ROWS), None, combiner="mean")


@case("dense mean eps mask")
def masked_by_sign(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None, 6])
    mask = tf.cast(x > 0, tf.float32)
    return tf.reduce_sum(m.gather(x) * mask[..., None], -2) / (tf.reduce_sum(mask, -1, keepdims=True) + 1e-9)


@case("dense mean no_nan mask_value=0")
def masked_without_nan(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None, 6])
    return tf.math.divide_no_nan(tf.reduce_sum(m.gather(x) * m.mask(x), 1), tf.reduce_sum(m.mask(x), 1))


@case("dense sqrtn count mask_value=0")
def masked_by_root_of_count(m: Inputs) -> tf.Tensor:
    x = m.input("x", [None, 6])
    return tf.reduce_sum(m.gather(x) * m.mask(x), 1) / tf.sqrt(tf.reduce_sum(m.mask(x), 1))


@case("dense sum count mask")
def masked_by_an_input(m: Inputs) -> tf.Tensor:
    x, mask = m.input("x", [None, 6]), m.input("k", [None, 6], tf.bool)
    return tf.reduce_sum(tf.where(mask[..., None], m.gather(x), 0.0), 1)


@case("dense mean eps weights")
def weighted_mean(m: Inputs) -> tf.Tensor:
    x, w = m.input("x", [None, 6]), m.input("w", [None, 6], tf.float32)
    return tf.reduce_sum(m.gather(x) * w[:, :, None], 1) / (tf.reduce_sum(w, 1, keepdims=True) + 1e-8)


@case("dense mean count weights")
def weighted_by_einsum(m: Inputs) -> tf.Tensor:
    x, w = m.input("x", [None, 6]), m.input("w", [None, 6], tf.float32)
    return tf.einsum("bt,btd->bd", w, m.gather(x)) / tf.reduce_sum(w, 1, keepdims=True)


@case("dense none count")
def weights_of_another_rank(m: Inputs) -> tf.Tensor:
    x, w = m.input("x", [None, 6]), m.input("w", [None, 6, 1], tf.float32)
    return tf.reduce_sum(m.gather(x) * tf.tile(w, [1, 1, WIDTH]), 1)


@case("dense none count")
def pooled_inside_a_third_axis(m: Inputs) -> tf.Tensor:
    return tf.reduce_sum(m.gather(m.input("x", [None, 3, 2])), 2)


@case("dense none count")
def mixed_precision(m: Inputs) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(m.gather(m.input("x", [None, 5])), tf.float16), 1)


@case("segments mean count")
def given_segments(m: Inputs) -> tf.Tensor:
    return tf.math.segment_mean(m.gather(m.input("x", [None])), m.input("r", [None]))


@case("dense none count")
def unordered_segments(m: Inputs) -> tf.Tensor:
    n = m.input("n", [], tf.int32)
    return tf.math.unsorted_segment_mean(m.gather(m.input("x", [None])), m.input("r", [None]), n)


@case("segments sum count")
def counted_segments(m: Inputs) -> tf.Tensor:
    n = m.input("n", [], tf.int32)
    return tf.sparse.segment_sum(m.table(), m.input("x", [None]), m.input("r", [None]), num_segments=n)


def _item(folder: Path) -> GraphItem:
    rng = np.random.default_rng(0)
    tables = {f"{name}_1": rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in CASES}

    def build(given: Tables) -> dict[str, tf.Tensor]:
        return {name: make(Inputs(given, name)) for name, (make, _) in CASES.items()}

    return graph_item(build, tables=tables, work_dir=folder)


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Proof]:
    """The proof of each case, by name."""
    item = _item(tmp_path_factory.mktemp("tables"))
    view = GraphView(item.graph_def)
    tables = {node: item.files[index] for node, index in item.tables.items() if node in view}
    candidates, refusals = find_lookups(view, item.fetches(), tables)
    assert refusals == []
    names = {f"{name}_1": name for name in CASES}
    found: dict[str, Candidate] = {names[item.files[c.spec.table].name]: c for c in candidates}
    assert set(found) == set(CASES)
    return dict(zip(found, prove_all(item, list(found.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_variant(name: str, proofs: dict[str, Proof]) -> None:
    proof = proofs[name]
    assert proof.ok, proof.tried
    spec = proof.spec
    assert spec is not None
    assert proof.tried == (), "a bolder reading failed first"
    words = [spec.form, spec.combiner, spec.denominator, *(s.text() for s in spec.steps)]
    words += [f"mask_value={spec.mask_value}"] if spec.mask_value is not None else []
    words += [part for part in ("mask", "weights") if getattr(spec, part) is not None]
    words += [f"max_norm={spec.max_norm}"] if spec.max_norm is not None else []
    words += [f"ids_per_row={spec.ids_per_row}"] if spec.ids_per_row is not None else []
    assert " ".join(words).replace("%3B", ";") == CASES[name][1]
