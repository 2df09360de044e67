"""Input files: what parses gives arrays by input name; what does not is named by file, line and feature."""

import pathlib

import numpy as np
import pytest

from tfctr.data import read_inputs, write_outputs
from tfctr.errors import InputError

INFO = {
    "inputs": [
        {"name": "user", "dtype": "int64", "shape": [None, 1]},
        {"name": "price", "dtype": "float32", "shape": [None]},
        {"name": "word", "dtype": "string", "shape": [None]},
        {"name": "tags", "dtype": "int64", "shape": [None]},
        {"name": "tags_1", "dtype": "int64", "shape": [None]},
        {"name": "c", "dtype": "string", "shape": [None]},
        {"name": "c_1", "dtype": "int64", "shape": [None, 2]},
        {"name": "c_2", "dtype": "int64", "shape": [2]},
    ],
    "features": [
        {"name": "user", "kind": "dense", "parts": {"values": "user"}},
        {"name": "price", "kind": "dense", "parts": {"values": "price"}},
        {"name": "word", "kind": "dense", "parts": {"values": "word"}},
        {"name": "tags", "kind": "ragged", "parts": {"values": "tags", "row_splits": "tags_1"}},
        {"name": "c", "kind": "sparse", "parts": {"values": "c", "indices": "c_1", "dense_shape": "c_2"}},
    ],
}
GOOD = '{"user": 7, "price": 1.5, "word": "ö", "tags": [], "c": "x", "label": 1}\n'
SECOND = '{"user": 9, "price": 2, "word": {"b64": "/w=="}, "tags": [1, 2], "c": ["y", "z"], "label": 0}\n'


def write(folder: pathlib.Path, text: str) -> str:
    file = folder / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_jsonl_gives_the_parts_of_every_feature(tmp_path: pathlib.Path) -> None:
    read = read_inputs(write(tmp_path, GOOD + "\n" + SECOND), INFO)
    expected = {
        "user": np.array([[7], [9]], np.int64),
        "price": np.array([1.5, 2], np.float32),
        "word": np.array(["ö".encode(), b"\xff"], object),
        "tags": np.array([1, 2], np.int64),
        "tags_1": np.array([0, 0, 2], np.int64),
        "c": np.array([b"x", b"y", b"z"], object),
        "c_1": np.array([[0, 0], [1, 0], [1, 1]], np.int64),
        "c_2": np.array([2, 2], np.int64),
    }
    assert read.inputs.keys() == expected.keys()
    for name, value in expected.items():
        assert read.inputs[name].dtype == value.dtype, name
        np.testing.assert_array_equal(read.inputs[name], value, err_msg=name)
    assert read.labels is not None
    np.testing.assert_array_equal(read.labels, [1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no example"),
        ("[1]\n", r"rows.jsonl:1: expected an object"),
        (GOOD + "{\n", r"rows.jsonl:2: not JSON"),
        (GOOD.replace('"user": 7, ', ""), "example 1 lacks feature 'user'"),
        (GOOD.replace('"user"', '"usr": 1, "user"'), "unknown feature 'usr'"),
        (GOOD.replace("7", "7.5"), "feature 'user' expects int64, got the number 7.5"),
        (GOOD.replace("7", '"a"'), "feature 'user' expects int64 numbers, got b'a'"),
        (GOOD.replace("7", str(2**63)), "feature 'user'.*int64 expected"),
        (GOOD.replace('"ö"', "3"), "feature 'word' expects text, got 3"),
        (GOOD.replace('"ö"', '{"b64": "?"}'), "feature 'word': base64 does not decode"),
        (GOOD + SECOND.replace("9", "[9, 9]"), "feature 'user': example 2 has shape"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_inputs(write(tmp_path, text), INFO)


def test_npz_keeps_arrays_and_takes_labels_out(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, user=np.array([[1]]), label=np.array([1]), request_id=np.array(["r1"]))
    read = read_inputs(str(file), INFO)
    assert list(read.inputs) == ["user"]
    assert read.labels is not None
    assert read.request_ids is not None


@pytest.mark.parametrize(("name", "content"), [("x.npz", b"PK\x03\x04broken"), ("x.csv", b"a,b"), ("none.npz", None)])
def test_unreadable_files_are_named(tmp_path: pathlib.Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_inputs(str(tmp_path / name), INFO)


def test_outputs_are_written_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    outputs = {"p": np.array([[0.5], [1.0]], np.float32), "word": np.array([b"a", b"\xff"], object)}
    write_outputs(str(tmp_path / "out.jsonl"), outputs)
    assert (tmp_path / "out.jsonl").read_text() == '{"p": [0.5], "word": "a"}\n{"p": [1.0], "word": {"b64": "/w=="}}\n'
    write_outputs(str(tmp_path / "out.npz"), outputs)
    with np.load(tmp_path / "out.npz", allow_pickle=True) as archive:
        np.testing.assert_array_equal(archive["p"], outputs["p"])
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out.jsonl", "out.npz"]
    with pytest.raises(InputError, match="does not exist"):
        write_outputs(str(tmp_path / "no" / "out.npz"), outputs)
    with pytest.raises(InputError, match=r"\.npz or \.jsonl"):
        write_outputs(str(tmp_path / "out.txt"), outputs)


def test_labels_that_are_asked_for_must_be_there(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "in.npz"
    np.savez(file, user=np.array([[1], [2]]), label=np.array([1.0, np.nan]))
    with pytest.raises(InputError, match="no column 'click' of labels; it has label, user"):
        read_inputs(str(file), INFO, "click")
    with pytest.raises(InputError, match="the label of row 1 is NaN"):
        read_inputs(str(file), INFO)
    with pytest.raises(InputError, match="example 1 lacks feature 'click'"):
        read_inputs(write(tmp_path, GOOD), INFO, "click")
    some = GOOD + SECOND.replace(', "label": 0', "")
    with pytest.raises(InputError, match="example 2 lacks feature 'label'"):
        read_inputs(write(tmp_path, some), INFO)


def test_an_input_called_label_is_no_label(tmp_path: pathlib.Path) -> None:
    info = {
        "inputs": [{"name": "label", "dtype": "float32", "shape": [-1]}],
        "features": [{"name": "label", "kind": "dense", "parts": {"values": "label"}}],
    }
    read = read_inputs(write(tmp_path, '{"label": 0.5, "click": 1, "request_id": "x"}\n'), info, "click")
    assert read.inputs["label"].tolist() == [0.5]
    assert read.labels is not None
    assert read.labels.tolist() == [1]
    assert read.request_ids is not None
    assert read.request_ids.tolist() == ["x"]
    assert read_inputs(write(tmp_path, '{"label": 0.5}\n'), info).labels is None


def test_the_request_column_is_no_input_unless_the_signature_has_it(tmp_path: pathlib.Path) -> None:
    with_session = [line.replace('"label"', f'"session": {v}, "label"') for line, v in ((GOOD, 5), (SECOND, '"a"'))]
    file = write(tmp_path, "".join(with_session))
    read = read_inputs(file, INFO, request_column="session")
    assert read.request_ids is not None and read.request_ids.tolist() == ["5", "a"]
    assert "session" not in read.inputs
    read = read_inputs(write(tmp_path, GOOD + SECOND), INFO, request_column="user")
    assert read.request_ids is not None and read.request_ids.tolist() == ["7", "9"]
    assert read.inputs["user"].tolist() == [[7], [9]]


def test_the_request_column_of_an_archive(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "rows.npz")
    arrays = {"user": np.array([[7], [9]]), "price": np.ones(2, np.float32)}
    np.savez(file, session=np.array([3, 3]), request_id=np.array([1, 2]), label=np.array([0, 1]), **arrays)
    read = read_inputs(file, INFO, request_column="session")
    assert read.request_ids is not None and read.request_ids.tolist() == [3, 3]
    assert sorted(read.inputs) == ["price", "user"]
    read = read_inputs(file, INFO, request_column="user")
    assert read.request_ids is not None and read.request_ids.tolist() == [7, 9]
    assert "user" in read.inputs


@pytest.mark.parametrize(
    ("cell", "message"),
    [("", "example 1 has no request column 's'"), ('"s": [1, 2], ', "example 1 has 2 values in the request col")],
)
def test_a_request_column_needs_one_value_per_row(tmp_path: pathlib.Path, cell: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_inputs(write(tmp_path, GOOD.replace('"user"', f'{cell}"user"')), INFO, request_column="s")
    np.savez(tmp_path / "x.npz", t=np.ones((2, 2)))
    with pytest.raises(InputError, match="no request column 's'; it has t"):
        read_inputs(str(tmp_path / "x.npz"), INFO, request_column="s")
    with pytest.raises(InputError, match="one value per row"):
        read_inputs(str(tmp_path / "x.npz"), INFO, request_column="t")
