"""Reading manifests: what is refused, and how it is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.bundle.reader import is_bundle, open_bundle
from tfctr.errors import CorruptFileError, UsageError, VersionError


def content(**changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "tfctr": "0.1.0",
        "bundle_id": "ab",
        "model": {"file": naming.MODEL, "bytes": 5, "sha256": ""},
        "store": {"shared_name": "s", "files": []},
        "signatures": {},
        **changes,
    }


FILE = {"file": "x", "bytes": 5, "kind": "table", "name": "t", "dtype": "uint8", "shape": [], "fingerprint": ""}


def split(**changes: Any) -> dict[str, Any]:
    """A signature with a split form, some of whose fields are other ones."""
    flops = {"before_per_row": 2, "user_per_row": 1, "item_per_row": 1}
    names = {"signature": "s__split", "packed": None, "row_to_user": "r", "user_inputs": [], "user_features": []}
    form = {**names, "item_side": [], "broadcasts": [], "flops": flops, "boundary": [], **changes}
    lists: dict[str, Any] = {key: [] for key in ("inputs", "outputs", "features", "lookups", "boundary")}
    return {"signatures": {"s": {**lists, "split": form}}}


def write(folder: Path, text: bytes) -> Path:
    path = folder / naming.MANIFEST
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    (folder / naming.MODEL).write_bytes(b"model")
    return folder


def test_round_trip(tmp_path: Path) -> None:
    wanted = content(numbers=[np.int64(3), np.float32(0.5)], text=b"\xff")
    bundle = open_bundle(write(tmp_path, manifests.dump(wanted)))
    assert bundle.manifest["numbers"] == [3, 0.5]
    assert is_bundle(tmp_path)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifests.dump({"x": float("nan")})


def test_not_a_bundle(tmp_path: Path) -> None:
    assert not is_bundle(tmp_path)
    with pytest.raises(UsageError, match="not a bundle"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("data", [b"{", b"[" * 5000])
def test_not_json(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="not valid JSON"):
        open_bundle(write(tmp_path, data))


@pytest.mark.parametrize("field", ["format", "store", "signatures", "model"])
def test_missing_field(tmp_path: Path, field: str) -> None:
    broken = content()
    del broken[field]
    with pytest.raises(CorruptFileError, match=field):
        open_bundle(write(tmp_path, json.dumps(broken).encode()))


def test_newer_format(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match=r"bundle format 2, written by tfctr 9.9.*reads up to 1"):
        open_bundle(write(tmp_path, manifests.dump(content(format=2, tfctr="9.9"))))


def test_missing_and_cut_files(tmp_path: Path) -> None:
    described = {"kind": "table", "name": "t", "dtype": "float32", "shape": [2, 1], "fingerprint": "f"}
    files = [{"file": "assets/tfctr/0.table", "bytes": 10, **described}]
    folder = write(tmp_path, manifests.dump(content(store={"files": files})))
    with pytest.raises(CorruptFileError, match=r"0.table: missing"):
        open_bundle(folder)
    (folder / "assets/tfctr").mkdir(parents=True)
    (folder / "assets/tfctr/0.table").write_bytes(b"short")
    with pytest.raises(CorruptFileError, match=r"5 bytes, the manifest says 10"):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store": {}}, "the store has no list of files"),
        ({"store": {"files": [{"file": "x"}]}}, "the field 'bytes' is missing"),
        ({"model": {"file": "../x", "bytes": 5}}, "lies outside the bundle"),
        ({"model": {"file": "/x", "bytes": 5}}, "lies outside the bundle"),
        ({"signatures": {"s": None}}, "signature 's': the field 'inputs' is missing"),
        ({"store": {"files": [{**FILE, "stands_for": {"dtype": "float32", "shape": [2]}}]}}, "'storage' is missing"),
        ({"store": {"files": [{**FILE, "storage": "int8", "stands_for": 5}]}}, "'stands_for' is missing or not a dict"),
        ({"store": {"files": [{**FILE, "storage": "int8", "stands_for": {"shape": []}}]}}, "'dtype' is missing"),
        (split(packed=[5]), "split: the field 'packed' is not the name of a signature"),
        (split(item_side=None), "split: the field 'item_side' is missing or not a list"),
        (split(item_side=["mood"]), "split: item_side: the field 'feature' is missing"),
        (split(broadcasts=[{"tensor": "x", "at": "y"}]), "split: broadcasts: the field 'moved_past' is missing"),
        (split(flops={}), "split: flops: the field 'before_per_row' is missing"),
        (split(boundary=[{"tensor": "x", "dtype": 5}]), "split: boundary: the field 'dtype' is missing or not a str"),
    ],
)
def test_parts_that_are_missing_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        open_bundle(write(tmp_path, manifests.dump(content(**changes))))


def test_a_whole_split_form_is_read(tmp_path: Path) -> None:
    whole = split(item_side=[{"feature": "mood", "op": "AddV2", "node": "add", "reason": "mixed"}])
    assert open_bundle(write(tmp_path, manifests.dump(content(**whole)))).signatures["s"]["split"]["packed"] is None
