"""The record of sparse and ragged inputs beside a SavedModel: round trip, what is refused, what reads it."""

import json

import pytest

from tfctr.bundle import input_features, naming
from tfctr.errors import CorruptFileError, VersionError

TAGS = {"name": "tags", "kind": "ragged", "parts": {"values": "tags/values", "row_splits": "tags/row_splits"}}
SPARSE = {
    "name": "s",
    "kind": "sparse",
    "parts": {"indices": "s/indices", "values": "s/values", "dense_shape": "s/dense_shape"},
}


def test_round_trip(tmp_path):
    input_features.write(tmp_path, {"serving_default": [TAGS, SPARSE], "other": []})
    assert input_features.read(tmp_path) == {"serving_default": [TAGS, SPARSE], "other": []}


def test_no_file_is_no_feature(tmp_path):
    assert input_features.read(tmp_path) == {}


def test_newer_format_is_refused_by_name(tmp_path):
    input_features.write(tmp_path, {"serving_default": [TAGS]})
    path = tmp_path / naming.FEATURES
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(VersionError, match=f"{path}: format 2, this tfctr reads up to 1"):
        input_features.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": "1", "signatures": {}}',
        '{"format": 1, "signatures": {"a": [{"name": "t", "kind": "dense", "parts": {}}]}}',
        '{"format": 1, "signatures": {"a": [{"name": "t", "kind": "ragged", "parts": {"values": "v"}}]}}',
        '{"format": 1, "signatures": {"a": "t"}}',
    ],
)
def test_damage_is_named(tmp_path, text):
    input_features.write(tmp_path, {})
    path = tmp_path / naming.FEATURES
    path.write_text(text)
    with pytest.raises(CorruptFileError, match=str(path)):
        input_features.read(tmp_path)
