"""The writer and the reader of delta folders, identities, the lock; nothing of TensorFlow."""

import dataclasses
import json
import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tfctr.bundle.deltas.delta_folder import content_hash, open_delta
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.bundle.deltas.identity import (
    Version,
    base_hash,
    check_follows,
    next_hash,
    version_of,
    wrong_version,
)
from tfctr.bundle.deltas.links import Links
from tfctr.bundle.deltas.lock import lock_path, only_writer
from tfctr.bundle.deltas.plan import version_name
from tfctr.errors import CorruptFileError, TfctrError, UsageError

MANIFEST = {
    "bundle_id": "ab" * 16,
    "created": "2026-01-01T00:00:00Z",
    "source": {"path": "/models/08"},
    "model": {"sha256": "00"},
    "store": {"files": [{"kind": "table", "bytes": 3, "fingerprint": "f"}]},
}
START = version_of(MANIFEST, "bundle")


def write(out: Path, previous: Version = START, **options):
    with DeltaWriter(out, previous, **options) as writer:
        writer.table_path(3, "emb/x").write_bytes(b"rows")
        writer.add_table(index=3, kind="hash", name="emb/x", rows=2, removed=1)
        path = writer.file_path(1, "words.vocab")
        path.write_bytes(b"words")
        writer.add_file(
            path, {"index": 1, "kind": "vocab", "name": "w", "dtype": "string", "shape": [2], "fingerprint": "f"}
        )
        writer.dense_path("saved_model.pb").write_bytes(b"graph")
        writer.dense_path("variables/variables.index").write_bytes(b"state")
        writer.set_dense({"signatures": {}}, keep=[0, -1, 2, 3])
        return writer.commit({"path": "models/09", "kind": "saved_model"}, {"compared": 7})


def test_what_is_written_is_read(tmp_path):
    made = write(tmp_path / "new" / "delta")
    found = open_delta(tmp_path / "new" / "delta")
    assert found.content == made.content
    assert (found.rows, found.removed, found.sequence) == (2, 1, 1)
    assert found.size() == len(b"rowswordsgraphstate")
    assert found.dense["keep"] == [0, -1, 2, 3]
    assert sorted(entry["target"] for entry in found.dense["files"]) == ["saved_model.pb", "variables/variables.index"]
    assert found.content["base"]["source"] == "/models/08"
    found.verify()
    check_follows(START, found.content, "delta", "bundle")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["delta"]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), DeltaWriter(tmp_path / "a" / "delta", START) as writer:
        writer.table_path(0, "x").write_bytes(b"")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_out_is_checked(tmp_path):
    base, out = tmp_path / "base", tmp_path / "delta"
    base.mkdir()
    for place, words in ((base, "lies in"), (base / "x", "lies in"), (tmp_path, "holds")):
        with pytest.raises(UsageError, match=words):
            write(place, protected=[base])
    write(out)
    with pytest.raises(UsageError, match="exists already"):
        write(out)
    write(out, force=True)
    with pytest.raises(UsageError, match=r"holds no delta\.json"):
        write(base, force=True)
    with only_writer(out), pytest.raises(UsageError, match="another process"):
        write(out, force=True)
    open_delta(out).verify()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(kind="other"), "kind"),
        (lambda c: c.update(sequence=7), "delta 7 to version 0"),
        (lambda c: c["tables"][0].update(file="../x"), "outside"),
        (lambda c: c["tables"][0].update(file="/etc/passwd"), "outside"),
        (lambda c: c["tables"][0].update(kind="vocab"), "none of"),
        (lambda c: c["tables"][0].pop("rows"), "'rows'"),
        (lambda c: c["tables"].append(c["tables"][0]), "two entries"),
        (lambda c: c["dense"].update(keep=["a"]), "keep"),
        (lambda c: c["dense"].update(files=[]), "no saved_model.pb"),
        (lambda c: c["base"].pop("bundle_id"), "'bundle_id'"),
        (lambda c: c["tables"][0].update(rows=3), "does not have the hash"),
        (lambda c: c.update(hash="0"), "does not have the hash"),
    ],
)
def test_a_wrong_delta_json(tmp_path, change, words):
    write(tmp_path / "delta")
    path = tmp_path / "delta" / "delta.json"
    content = json.loads(path.read_text())
    change(content)
    if "does not" not in words:
        content["hash"] = content_hash(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptFileError, match=words):
        open_delta(tmp_path / "delta")


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[" * 3000 + "]" * 3000, "9" * 5000])
def test_values_that_are_no_json(tmp_path, value):
    write(tmp_path / "delta")
    path = tmp_path / "delta" / "delta.json"
    path.write_text(path.read_text().replace('"compared": 7', f'"compared": {value}'))
    with pytest.raises(CorruptFileError, match=r"delta\.json: not valid JSON"):
        open_delta(tmp_path / "delta")


@hypothesis.given(st.binary(max_size=300))
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_bytes_are_refused(data):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "delta.json").write_bytes(data)
        with pytest.raises(TfctrError):
            open_delta(folder)


@hypothesis.given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4))
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_version_is_right_or_named(value):
    for told in (value, START.to_json() | {"deltas": value}, START.to_json() | {"start": value}):
        manifest = MANIFEST | {"version": told}
        if not wrong_version(told):
            try:
                version_of(manifest, "bundle")
            except CorruptFileError:
                continue


def test_hashes_tell_histories_apart():
    one, other = START.followed_by({"hash": "a"}), START.followed_by({"hash": "b"})
    assert len({START.hash, one.hash, other.hash, one.followed_by({"hash": "b"}).hash}) == 4
    assert one.followed_by({"hash": "b"}).hash != other.followed_by({"hash": "a"}).hash
    assert one.hash == next_hash(START.hash, "a")
    changed = MANIFEST | {"store": {"files": [{"kind": "table", "bytes": 3, "fingerprint": "g"}]}}
    assert base_hash(changed) != base_hash(MANIFEST)


def test_a_version_survives_its_manifest():
    version = START.followed_by({"hash": "a", "created": "t", "rows": 1, "removed": 0}).compacted()
    version = version.followed_by({"hash": "b", "created": "t", "rows": 1, "removed": 0})
    told = json.loads(json.dumps(version.to_json()))
    assert wrong_version(told) == ""
    assert version_of(MANIFEST | {"version": told}, "bundle") == version
    with pytest.raises(CorruptFileError, match="version 3"):
        version_of(MANIFEST | {"version": told | {"sequence": 3}}, "bundle")
    moved = dataclasses.replace(START, base="x").to_json()
    with pytest.raises(CorruptFileError, match="hash of its base"):
        version_of(MANIFEST | {"version": moved}, "bundle")


def test_links_and_copies(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    os.symlink(tmp_path / "a", tmp_path / "link")
    links = Links()
    links.add(tmp_path / "link", tmp_path / "out" / "b")
    assert (tmp_path / "out" / "b").stat().st_ino == (tmp_path / "a").stat().st_ino
    assert not (tmp_path / "out" / "b").is_symlink()
    assert links.describe() == {"linked": 1, "linked_bytes": 5, "copied": 0, "copied_bytes": 0, "reason": ""}
    with pytest.raises(FileExistsError):
        links.add(tmp_path / "a", tmp_path / "out" / "b")


def test_the_lock_goes_with_its_process(tmp_path):
    out = tmp_path / "deep" / "out"
    pid = os.fork()
    if pid == 0:
        held = only_writer(out)
        held.__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock_path(out).exists()
    with only_writer(out):
        assert lock_path(out).read_text() == str(os.getpid())
    assert not (tmp_path / "deep" / "out").exists()


def test_names_of_versions():
    assert version_name("assets/tfctr/0003_emb.hash", 2, ".overlay") == "0003_emb.v2.overlay"
    assert version_name("0003_emb.v2.hash", 13, ".hash") == "0003_emb.v13.hash"
