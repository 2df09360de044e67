"""tf.Example to inputs of a signature, and its outputs to classifications and regressions."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import input_pb2

from tfctr.errors import InputError, TfctrError
from tfctr.serving.server import tfs_examples
from tfctr.serving.signature_info import Feature, Input

WHERE = "model 'm', signature 's'"


def example(**features) -> tf.train.Example:
    made = tf.train.Example()
    for name, values in features.items():
        of = made.features.feature[name]
        kinds = {bytes: of.bytes_list, int: of.int64_list, float: of.float_list}
        for value in values:
            kinds[type(value)].value.append(value)
    return made


def reader(*inputs, features=()):
    return tfs_examples.reader_of(WHERE, inputs, features)


def test_a_vector_of_strings_gets_the_examples_themselves():
    inputs = reader(Input("examples", "string", (-1,), "e:0")).inputs([b"a", b""])
    assert inputs["examples"].dtype == object and list(inputs["examples"]) == [b"a", b""]


def test_inputs_by_name_of_every_kind():
    tags = Feature("tags", "ragged", {"values": "tags/values", "row_splits": "tags/row_splits"})
    read = reader(
        Input("user", "int32", (-1,), "u:0"),
        Input("price", "float64", (-1, 2), "p:0"),
        Input("city", "string", (-1, 1), "c:0"),
        Input("tags/values", "int64", (-1,), "v:0"),
        Input("tags/row_splits", "int64", (-1,), "r:0"),
        features=[tags],
    )
    rows = [
        example(user=[3], price=[1.0, 2.0], city=[b"ulm"], tags=[4, 5]),
        example(user=[-1], price=[0.5, 0.25], city=[b""]),
    ]
    inputs = read.inputs([one.SerializeToString() for one in rows])
    assert inputs["user"].numpy().tolist() == [3, -1]
    assert inputs["price"].numpy().tolist() == [[1.0, 2.0], [0.5, 0.25]]
    assert inputs["city"].numpy().tolist() == [[b"ulm"], [b""]]
    assert inputs["tags"].to_list() == [[4, 5], []]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (example(price=[1.0]), "user"),
        (example(user=[1, 2], price=[1.0]), "user"),
        (example(user=[1.5], price=[1.0]), "user"),
        (example(user=[1], price=[b"x"]), "price"),
    ],
)
def test_what_is_wrong_with_an_example_names_the_feature(bad, named):
    read = reader(Input("user", "int64", (-1,), "u:0"), Input("price", "float32", (-1,), "p:0"))
    with pytest.raises(InputError, match=f"model 'm'.*(Feature|Key): {named}[ ,.]") as caught:
        read.inputs([bad.SerializeToString()])
    assert "{{" not in str(caught.value) and "Op:" not in str(caught.value)


@pytest.mark.parametrize(
    "given_input",
    [Input("a", "int64", (-1, -1), "a:0"), Input("a", "float32", None, "a:0"), Input("a", "complex64", (-1,), "a:0")],
)
def test_what_no_example_can_hold_is_refused_by_name(given_input):
    with pytest.raises(InputError, match="input 'a' of"):
        reader(given_input, Input("b", "int64", (-1,), "b:0"))


def test_the_context_is_part_of_every_example_and_loses():
    given_input = input_pb2.Input()
    with_context = given_input.example_list_with_context
    with_context.context.CopyFrom(example(user=[7], city=[b"c"]))
    with_context.examples.extend([example(item=[1]), example(item=[2], city=[b"own"])])
    first, second = (tf.train.Example.FromString(one) for one in tfs_examples.serialized_examples(given_input))
    assert first == example(user=[7], city=[b"c"], item=[1])
    assert second == example(user=[7], city=[b"own"], item=[2])


def test_no_examples():
    for given_input in (input_pb2.Input(), input_pb2.Input(example_list=input_pb2.ExampleList())):
        with pytest.raises(InputError, match="no examples"):
            tfs_examples.serialized_examples(given_input)


def test_a_classification_needs_its_method_or_predict():
    tfs_examples.check_method(WHERE, tfs_examples.CLASSIFY, tfs_examples.CLASSIFY)
    tfs_examples.check_method(WHERE, tfs_examples.PREDICT, tfs_examples.CLASSIFY)
    with pytest.raises(InputError, match="expected a signature with method name tensorflow/serving/classify"):
        tfs_examples.check_method(WHERE, tfs_examples.REGRESS, tfs_examples.CLASSIFY)


@settings(deadline=None)
@given(
    rows=st.integers(1, 4),
    classes=st.integers(0, 3),
    has_labels=st.booleans(),
    has_scores=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_classifications_hold_what_the_outputs_hold(rows, classes, has_labels, has_scores, dtype):
    scores = np.linspace(0, 1, rows * classes).reshape(rows, classes).astype(dtype)
    labels = np.array([f"c{k}é".encode() for k in range(rows * classes)], object).reshape(rows, classes)
    outputs = {**({"classes": labels} if has_labels else {}), **({"scores": scores} if has_scores else {})}
    if not outputs:
        with pytest.raises(InputError, match="no classification"):
            tfs_examples.classification_result(WHERE, outputs, rows)
        return
    result = tfs_examples.classification_result(WHERE, outputs, rows)
    assert [len(row.classes) for row in result.classifications] == [classes] * rows
    for row, row_labels, row_scores in zip(result.classifications, labels, scores, strict=True):
        for one, label, score in zip(row.classes, row_labels, row_scores, strict=True):
            assert one.label == (label.decode() if has_labels else "")
            assert one.score == (np.float32(score) if has_scores else 0)


def test_the_only_float_output_gives_scores_and_regressions():
    outputs = {"click": np.float32([[0.25], [0.5]]), "id": np.int64([1, 2])}
    found = tfs_examples.classification_result(WHERE, outputs, 2)
    assert [row.classes[0].score for row in found.classifications] == [0.25, 0.5]
    assert [one.value for one in tfs_examples.regression_result(WHERE, outputs, 2).regressions] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"scores": np.float32([1, 2, 3])}, "3 rows for 2 examples"),
        ({"scores": np.zeros((2, 1, 1), np.float32)}, r"shape \[2, 1, 1\]"),
        ({"scores": np.int64([1, 2])}, "int64, expected floats"),
        ({"classes": np.float32([1, 2])}, "expected strings"),
        ({"classes": np.array([b"a", b"b"], object), "scores": np.zeros((2, 2), np.float32)}, "1 classes and 2 scores"),
        ({"a": np.float32([1, 2]), "b": np.float32([1, 2])}, "it has a, b"),
        ({"scores": tf.compat.v1.SparseTensorValue([[0, 0]], [1.0], [2, 1])}, "sparse or ragged"),
    ],
)
def test_outputs_that_are_no_classification(outputs, message):
    with pytest.raises(InputError, match=message):
        tfs_examples.classification_result(WHERE, outputs, 2)


def test_outputs_that_are_no_regression():
    with pytest.raises(InputError, match="one value per row, output 'outputs' has 2"):
        tfs_examples.regression_result(WHERE, {"outputs": np.zeros((3, 2), np.float32)}, 3)
    with pytest.raises(InputError, match="no regression"):
        tfs_examples.regression_result(WHERE, {"label": np.array([b"a"], object)}, 1)


def test_a_label_that_is_no_text_is_the_models_fault():
    with pytest.raises(TfctrError, match="not UTF-8") as caught:
        tfs_examples.classification_result(WHERE, {"classes": np.array([b"\xff"], object)}, 1)
    assert not isinstance(caught.value, InputError)
