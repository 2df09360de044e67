"""Whole files in place of the bundle's, and graphs whose store has other files."""

import numpy as np
import pytest

import tfctr
from tests.bundle.deltas import delta_models as models
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.bundle.deltas.plan import make_plan
from tfctr.bundle.reader import open_bundle
from tfctr.core import library
from tfctr.errors import CorruptFileError


def replaced(base, out, name: str, write, **more):
    """A delta with a whole file in place of the one called ``name``."""
    entry = next(e for e in open_bundle(base.bundle).manifest["store"]["files"] if e["name"] == name)
    with DeltaWriter(out, models.version(base.bundle)) as writer:
        path = writer.file_path(entry["index"], entry["file"].rsplit("/", 1)[1])
        write(path)
        info = library.native().file_info(path)
        told = {"fingerprint": info["fingerprint"], "shape": list(info["shape"])}
        writer.add_file(path, {**entry, **told})
        return writer.commit({"kind": "by hand", **more})


def test_a_new_vocabulary(base, tmp_path):
    name = next(e["name"] for e in open_bundle(base.bundle).manifest["store"]["files"] if e["kind"] == "vocab")
    replaced(
        base,
        tmp_path / "delta",
        name,
        lambda path: library.native().write_vocab(path, name, [b"z", b"y", b"x", b"new"], np.array([1, 2, 3, 0])),
    )
    report = tfctr.apply_delta(base.bundle, tmp_path / "delta", tmp_path / "v1")
    assert report.files == (name,)
    given = {"item": [0, 0, 0], "word": [b"x", b"y", b"z"], "user": [1, 1, 1]}
    swapped = given | {"word": [b"z", b"y", b"x"]}
    with tfctr.ServingSession(base.bundle) as old, tfctr.ServingSession(tmp_path / "v1") as new:
        before = old.predict(given)["score"]
        assert len(set(before.tolist())) == 3
        np.testing.assert_array_equal(new.predict(swapped)["score"], before)
        old.apply_deltas(tmp_path / "delta")
        np.testing.assert_array_equal(old.predict(swapped)["score"], before)
        # Rows come over it, on disk and in memory.
        changes = models.random_changes(3, base.expected[0])
        models.write_delta(tmp_path / "next", tmp_path / "v1", old.version, changes)
        old.apply_deltas(tmp_path / "next")
        tfctr.apply_delta(tmp_path / "v1", tmp_path / "next", tmp_path / "v2")
        base.expected[0].after(changes).check(tmp_path / "v2")
        with tfctr.ServingSession(tmp_path / "v2") as other:
            np.testing.assert_array_equal(old.predict(swapped)["score"], other.predict(swapped)["score"])


def test_a_whole_table_drops_its_overlay(base, tmp_path):
    """A table replaced as a whole after rows of it were: nothing of the old overlay is left."""
    first = tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    entry = next(e for e in open_bundle(tmp_path / "v1").manifest["store"]["files"] if e["name"] == "items")
    fresh = np.random.default_rng(0).normal(size=(models.ITEMS, models.DIM)).astype(np.float32)
    with DeltaWriter(tmp_path / "delta", first.version) as writer:
        path = writer.file_path(entry["index"], "0000_items.table")
        info = library.native().write_table(path, "items", fresh)
        writer.add_file(path, {**entry, "fingerprint": info["fingerprint"]})
        writer.commit({})
    tfctr.apply_delta(tmp_path / "v1", tmp_path / "delta", tmp_path / "v2")
    np.testing.assert_array_equal(tfctr.load_table(tmp_path / "v2", "items").rows(), fresh)
    overlays = [e["name"] for e in open_bundle(tmp_path / "v2").manifest["store"]["files"] if e["kind"] == "overlay"]
    assert sorted(overlays) == ["users", "whole"]


def plan(base, delta):
    manifest = open_bundle(base.bundle).manifest
    return make_plan(manifest, lambda e: base.bundle / e["file"], base.bundle / "saved_model.pb", [delta], "bundle")


@pytest.mark.parametrize("keep", [[1, 0, 2], [2, 1, 0, 3], [0, 1, 2, 3]])
def test_a_graph_may_keep_files_in_another_order(base, tmp_path, keep):
    names = [e["name"] for e in open_bundle(base.bundle).manifest["store"]["files"]]
    with DeltaWriter(tmp_path / "delta", models.version(base.bundle)) as writer:
        writer.dense_path("saved_model.pb").write_bytes(b"graph")
        writer.set_dense({}, keep=keep)
        writer.commit({})
    assert [f.entry["name"] for f in plan(base, tmp_path / "delta").files] == [names[k] for k in keep]


@pytest.mark.parametrize("keep", [[0, 9], [-1, 0], [-2]])
def test_a_graph_that_keeps_what_is_not_there(base, tmp_path, keep):
    with DeltaWriter(tmp_path / "delta", models.version(base.bundle)) as writer:
        writer.dense_path("saved_model.pb").write_bytes(b"graph")
        writer.set_dense({}, keep=keep)
        writer.commit({})
    with pytest.raises(CorruptFileError, match="keeps file"):
        plan(base, tmp_path / "delta")


@pytest.mark.parametrize("target", ["assets.extra/tfctr_manifest.json", "assets/tfctr/x.table"])
def test_a_dense_part_with_what_is_not_its_own(base, tmp_path, target):
    with DeltaWriter(tmp_path / "delta", models.version(base.bundle)) as writer:
        writer.dense_path("saved_model.pb").write_bytes(b"graph")
        writer.dense_path(target).write_bytes(b"x")
        writer.set_dense({})
        writer.commit({})
    with pytest.raises(CorruptFileError, match="not its own"):
        tfctr.apply_delta(base.bundle, tmp_path / "delta", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_graph_that_is_none(base, tmp_path):
    with DeltaWriter(tmp_path / "delta", models.version(base.bundle)) as writer:
        writer.dense_path("saved_model.pb").write_bytes(b"\xff\xfe graph")
        writer.set_dense({})
        writer.commit({})
    with pytest.raises(CorruptFileError, match="is no SavedModel"):
        tfctr.apply_delta(base.bundle, tmp_path / "delta", tmp_path / "out")
    with tfctr.ServingSession(base.bundle) as session:
        with pytest.raises(CorruptFileError, match="is no SavedModel"):
            session.apply_deltas(tmp_path / "delta")
        assert session.version.sequence == 0
        session.predict(models.inputs(1))
    assert [p.name for p in tmp_path.iterdir()] == ["delta"]
