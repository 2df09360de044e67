"""Logical names and parts: what a SignatureDef says, what callers add, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.errors import UsageError
from tfctr.serving import feature_map
from tfctr.serving.signature_info import read_signature


def tensor_info(name, dtype=tf.int64, shape=(-1,)):
    info = meta_graph_pb2.TensorInfo(name=name, dtype=dtype.as_datatype_enum)
    for size in shape:
        info.tensor_shape.dim.add(size=size)
    return info


@pytest.fixture
def signature():
    """A coo_sparse `s`, a composite ragged `r` of two levels, flattened `a`, `a_1`, `a_2` of TF2, a dense `d`."""
    made = meta_graph_pb2.SignatureDef()
    made.inputs["d"].CopyFrom(tensor_info("d:0", tf.float32, (-1, 3)))
    sparse = made.inputs["s"]
    sparse.dtype = tf.string.as_datatype_enum
    sparse.tensor_shape.dim.add(size=-1)
    sparse.tensor_shape.dim.add(size=-1)
    sparse.coo_sparse.values_tensor_name = "sv:0"
    sparse.coo_sparse.indices_tensor_name = "si:0"
    sparse.coo_sparse.dense_shape_tensor_name = "ss:0"
    ragged = made.inputs["r"].composite_tensor
    ragged.type_spec.type_spec_class_name = "RaggedTensorSpec"
    for name in ("rv", "rs0:0", "rs1:0"):
        ragged.components.add().CopyFrom(tensor_info(name))
    made.inputs["a"].CopyFrom(tensor_info("a:0", shape=(-1, 2)))
    made.inputs["a_1"].CopyFrom(tensor_info("a_1:0"))
    made.inputs["a_2"].CopyFrom(tensor_info("a_2:0", shape=(2,)))
    made.outputs["y"].CopyFrom(tensor_info("y:0", tf.float32))
    return made


A = {"name": "a", "kind": "sparse", "parts": {"values": "a_1", "indices": "a", "dense_shape": "a_2"}}


def test_encodings_give_parts_and_features(signature):
    info = read_signature(signature)
    assert [one.name for one in info.inputs] == [
        "a", "a_1", "a_2", "d", "r/values", "r/row_splits", "r/row_splits_1", "s/values", "s/indices", "s/dense_shape",
    ]  # fmt: skip
    by_name = {one.name: one for one in info.inputs}
    assert (by_name["s/values"].dtype, by_name["s/values"].tensor) == ("string", "sv:0")
    assert by_name["s/indices"].shape == (-1, 2)
    assert by_name["r/values"].tensor == "rv:0"
    assert {f.name: f.kind for f in info.features} == {"r": "ragged", "s": "sparse"}
    assert info.features[0].row_splits() == ["r/row_splits", "r/row_splits_1"]


def test_names_alone_make_no_feature(signature):
    assert "a" not in {f.name for f in read_signature(signature).features}


def test_given_features_join_those_of_the_signature(signature):
    info = read_signature(signature)
    features = feature_map.with_features(info, [A, {"name": "d", "kind": "dense", "parts": {"values": "d"}}])
    assert [f.name for f in features] == ["a", "r", "s"]
    described = feature_map.describe("m", info, features, None, info.outputs)
    names = [part["name"] for part in described["parts"]]
    a = described["features"][0]
    assert [names[a[role]] for role in ("indices", "values", "dense_shape")] == ["a", "a_1", "a_2"]
    assert [names[k] for k in described["features"][1]["row_splits"]] == ["r/row_splits", "r/row_splits_1"]


def test_a_given_feature_replaces_that_of_the_signature(signature):
    other = {"name": "s", "kind": "ragged", "parts": {"values": "s/values", "row_splits": "s/indices"}}
    features = feature_map.with_features(read_signature(signature), [other])
    assert {f.name: f.kind for f in features}["s"] == "ragged"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([A | {"parts": A["parts"] | {"values": "b"}}], "its values 'b' is no input of the signature"),
        ([A, A | {"name": "b"}], "feature 'b': input 'a_1' belongs to another feature already"),
        ([A | {"parts": {"values": "a_1", "indices": "a"}}], "sparse feature 'a' has no part dense_shape"),
        ([A | {"name": "d"}], "feature 'd' has the name of another input"),
        ([A | {"name": "s"}], "feature 's' has the name of another input or feature"),
    ],
)
def test_features_that_do_not_fit_are_refused(signature, given, message):
    with pytest.raises(UsageError, match=message):
        feature_map.with_features(read_signature(signature), given)


def test_two_names_for_one_tensor_are_refused(signature):
    signature.inputs["e"].CopyFrom(tensor_info("d:0", tf.float32, (-1, 3)))
    with pytest.raises(UsageError, match="inputs 'd' and 'e' are the same graph tensor"):
        read_signature(signature)


def test_outputs_are_put_together_again():
    made = meta_graph_pb2.SignatureDef()
    made.outputs["y"].CopyFrom(tensor_info("y:0", tf.float32))
    sparse = made.outputs["s"]
    sparse.dtype = tf.int64.as_datatype_enum
    sparse.coo_sparse.values_tensor_name = "sv:0"
    sparse.coo_sparse.indices_tensor_name = "si:0"
    sparse.coo_sparse.dense_shape_tensor_name = "ss:0"
    ragged = made.outputs["r"].composite_tensor
    ragged.type_spec.type_spec_class_name = "RaggedTensorSpec"
    for name in ("rv:0", "r0:0", "r1:0"):
        ragged.components.add().CopyFrom(tensor_info(name))
    other = made.outputs["o"].composite_tensor
    other.type_spec.type_spec_class_name = "IndexedSlicesSpec"
    for name in ("ov:0", "oi:0"):
        other.components.add().CopyFrom(tensor_info(name))
    outputs = read_signature(made).outputs
    flat = {
        "y": np.array([1.0]),
        "s/values": np.array([7]),
        "s/indices": np.array([[0, 1]]),
        "s/dense_shape": np.array([1, 2]),
        "r/values": np.array([1, 2, 3]),
        "r/row_splits": np.array([0, 2]),
        "r/row_splits_1": np.array([0, 1, 3]),
        "o/values": np.array([4]),
        "o/component_1": np.array([5]),
    }
    fetched = [part["name"] for part in feature_map.describe("m", read_signature(made), (), None, outputs)["outputs"]]
    assert sorted(fetched) == sorted(flat)
    got = feature_map.assemble(outputs, flat)
    assert tf.sparse.to_dense(tf.SparseTensor.from_value(got["s"])).numpy().tolist() == [[0, 7]]
    assert got["r"].to_list() == [[[1], [2, 3]]]
    assert got["o/component_1"] == [5]
