"""BUNDLE + deltas = the rows they say, whatever the steps; links, manifest, lineage, compaction."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import tfctr
from tests.bundle.deltas import delta_models as models
from tfctr.bundle import naming
from tfctr.bundle.reader import open_bundle, verify_files


def predictions(bundle: Path) -> dict:
    with tfctr.ServingSession(bundle) as session:
        return session.predict(models.inputs(1))


def same(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def test_every_way_to_the_same_version_has_its_rows(base, tmp_path):
    for number, delta in enumerate(base.deltas, 1):
        before = base.bundle if number == 1 else tmp_path / f"v{number - 1}"
        report = tfctr.apply_delta(before, delta, tmp_path / f"v{number}")
        base.expected[number].check(tmp_path / f"v{number}")
        assert report.version.sequence == number
    together = tfctr.apply_delta(base.bundle, base.deltas, tmp_path / "together")
    assert together.version.hash == report.version.hash
    base.expected[3].check(tmp_path / "together")
    tfctr.apply_delta(tmp_path / "v1", base.deltas[1:], tmp_path / "mixed")
    one = predictions(tmp_path / "v3")
    same(one, predictions(tmp_path / "together"))
    same(one, predictions(tmp_path / "mixed"))
    verify_files(tmp_path / "v3", open_bundle(tmp_path / "v3").manifest)
    base.expected[0].check(base.bundle)  # as it was


def test_predictions_are_those_of_the_rows(base, tmp_path):
    tfctr.apply_delta(base.bundle, base.deltas, tmp_path / "v3")
    given, rows = models.inputs(1), base.expected[3].rows
    got = predictions(tmp_path / "v3")
    np.testing.assert_array_equal(got["items"], np.stack([rows["items"][int(k)] for k in given["item"]]))
    default = np.full(models.DIM, models.DEFAULT, np.float32)
    np.testing.assert_array_equal(got["users"], np.stack([rows["users"].get(int(k), default) for k in given["user"]]))
    # A table that a stock op reads whole has the new rows as well.
    whole = np.stack([rows["whole"][k] for k in range(models.WHOLE)])
    np.testing.assert_allclose(got["dot"], whole @ got["items"].sum(0), rtol=1e-5, atol=1e-5)


def test_a_version_is_a_full_conversion_of_the_newer_model(tmp_path):
    """Rows of the newer model by delta, against the same model converted."""
    old, new = models.Model(0), models.Model(0)
    changes = models.random_changes(5, models.expected(old))
    for name in ("items", "whole"):
        rows, _ = changes[name]
        variable = getattr(new, name)
        values = variable.numpy()
        values[list(rows)] = np.stack(list(rows.values()))
        variable.assign(values)
    given, removed = changes["users"]
    import tensorflow as tf

    from tfctr.embedding import warm_start

    new.users.erase(tf.constant(list(removed), tf.int64))
    warm_start.from_numpy(new.users, np.array(list(given), np.int64), np.stack(list(given.values())))
    tfctr.convert(models.save(old, tmp_path / "old"), tmp_path / "bundle")
    tfctr.convert(models.save(new, tmp_path / "new"), tmp_path / "full")
    models.write_delta(tmp_path / "delta", tmp_path / "bundle", models.version(tmp_path / "bundle"), changes)
    tfctr.apply_delta(tmp_path / "bundle", tmp_path / "delta", tmp_path / "version")
    same(predictions(tmp_path / "full"), predictions(tmp_path / "version"))
    for name in ("items", "users"):
        one, other = (tfctr.load_table(tmp_path / path, name) for path in ("full", "version"))
        assert len(one) == len(other)
        keys = np.sort(one.keys())
        np.testing.assert_array_equal(np.sort(other.keys()), keys)
        np.testing.assert_array_equal(one.lookup(keys), other.lookup(keys))


def test_unchanged_files_are_links_and_the_rest_is_small(base, tmp_path):
    report = tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    linked = {p.stat().st_ino for p in base.bundle.rglob("*") if p.is_file()}
    fresh = [p for p in (tmp_path / "v1").rglob("*") if p.is_file() and p.stat().st_ino not in linked]
    kinds = sorted(p.suffix for p in fresh)
    assert kinds == [".json", ".overlay", ".overlay", ".overlay", ".pb"]
    assert report.links["copied"] == 0
    assert report.written_bytes == sum(p.stat().st_size for p in fresh)
    again = tfctr.apply_delta(tmp_path / "v1", base.deltas[1], tmp_path / "v2")
    assert again.links["linked"] == report.links["linked"]


def test_copies_across_file_systems_are_said(base, tmp_path):
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev or not os.access(other, os.W_OK):
        pytest.skip("no second file system at /dev/shm")
    out = other / f"tfctr-test-{os.getpid()}" / "v1"
    told: list[str] = []
    try:
        report = tfctr.apply_delta(base.bundle, base.deltas[0], out, note=told.append)
        assert report.links["linked"] == 0
        assert report.links["copied"] > 3
        assert "cross-device" in report.links["reason"]
        assert any("copied, not linked" in line for line in told)
        base.expected[1].check(out)
    finally:
        shutil.rmtree(out.parent, ignore_errors=True)


def test_the_manifest_names_overlays_and_lineage(base, tmp_path):
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    before, manifest = open_bundle(base.bundle).manifest, open_bundle(tmp_path / "v2").manifest
    version, files = manifest["version"], manifest["store"]["files"]
    assert version["sequence"] == 2
    assert [one["sequence"] for one in version["deltas"]] == [1, 2]
    assert version["origin"]["bundle_id"] == before["bundle_id"] != manifest["bundle_id"]
    overlays = [entry for entry in files if entry["kind"] == "overlay"]
    assert files[: len(before["store"]["files"])] == before["store"]["files"]
    assert {files[entry["base"]]["name"] for entry in overlays} == {"items", "whole", "users"}
    assert all(entry["rows"] > 0 for entry in overlays)
    users = next(entry for entry in overlays if entry["name"] == "users")
    assert users["removed"] > 0
    assert tfctr.load_table(tmp_path / "v2", "users").info["overlay"]["rows"] == users["rows"]


def test_two_versions_in_one_process_do_not_meet(base, tmp_path):
    """TensorFlow's own loader keeps resources by name in the whole process."""
    import tensorflow as tf

    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    old = tf.saved_model.load(str(base.bundle)).signatures["serving_default"]
    new = tf.saved_model.load(str(tmp_path / "v1")).signatures["serving_default"]
    given = {name: tf.constant(value) for name, value in models.inputs(1).items()}
    for number, loaded in ((0, old), (1, new), (0, old)):
        rows = base.expected[number].rows["items"]
        np.testing.assert_array_equal(
            loaded(**given)["items"], np.stack([rows[int(k)] for k in models.inputs(1)["item"]])
        )


def test_advice_comes_beyond_five_percent(base, tmp_path):
    report = tfctr.apply_delta(base.bundle, base.deltas, tmp_path / "v3")
    assert "tfctr compact" in report.advice
    assert "users" in report.advice
    few = {"items": ({1: np.ones(models.DIM, np.float32)}, [])}
    models.write_delta(tmp_path / "few", base.bundle, models.version(base.bundle), few)
    assert tfctr.apply_delta(base.bundle, tmp_path / "few", tmp_path / "v1").advice == ""


def test_compaction_keeps_rows_hash_and_place_in_the_chain(base, tmp_path):
    applied = tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    report = tfctr.compact(tmp_path / "v2", tmp_path / "flat")
    assert report.version.hash == applied.version.hash
    assert not [f for f in open_bundle(tmp_path / "flat").manifest["store"]["files"] if f["kind"] == "overlay"]
    base.expected[2].check(tmp_path / "flat")
    same(predictions(tmp_path / "v2"), predictions(tmp_path / "flat"))
    verify_files(tmp_path / "flat", open_bundle(tmp_path / "flat").manifest)
    third = tfctr.apply_delta(tmp_path / "flat", base.deltas[2], tmp_path / "v3")
    assert third.version.hash == tfctr.apply_delta(tmp_path / "v2", base.deltas[2], tmp_path / "v3b").version.hash
    base.expected[3].check(tmp_path / "v3")
    again = tfctr.compact(tmp_path / "v3", tmp_path / "flat3")
    base.expected[3].check(again.path)
    assert [p.name for p in (again.path / naming.STORE_FOLDER).iterdir() if ".v2.v3" in p.name] == []


def test_compaction_without_overlays_links(base, tmp_path):
    told: list[str] = []
    report = tfctr.compact(base.bundle, tmp_path / "same", note=told.append)
    assert report.version.sequence == 0
    assert any("no overlays" in line for line in told)
    same(predictions(base.bundle), predictions(tmp_path / "same"))
    # Its lineage is that of the bundle: deltas of the one fit the other.
    base_version = models.version(base.bundle)
    assert models.version(tmp_path / "same") == base_version
    tfctr.apply_delta(tmp_path / "same", base.deltas[0], tmp_path / "v1")
    base.expected[1].check(tmp_path / "v1")


def test_a_dense_part_gives_the_new_graph(base, tmp_path):
    """A delta with rows and a graph whose kernel is another."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((base.bundle / "saved_model.pb").read_bytes())
    changed = 0
    for node in saved.meta_graphs[0].graph_def.node:
        tensor = node.attr["value"].tensor
        if node.op == "Const" and [d.size for d in tensor.tensor_shape.dim] == [3 * models.DIM]:
            tensor.tensor_content = (2 * np.frombuffer(tensor.tensor_content, np.float32)).tobytes()
            changed += 1
    assert changed
    changes = models.random_changes(9, base.expected[0])
    models.write_delta(
        tmp_path / "delta",
        base.bundle,
        models.version(base.bundle),
        changes,
        graph=saved.SerializeToString(),
        manifest={"refreshed": {"generation": 1, "converted": {"created": "then"}, "from": {"path": "x"}}},
    )
    report = tfctr.apply_delta(base.bundle, tmp_path / "delta", tmp_path / "v1")
    assert report.dense
    base.expected[0].after(changes).check(tmp_path / "v1")
    got = predictions(tmp_path / "v1")
    with tfctr.ServingSession(base.bundle) as session:
        session.apply_deltas(tmp_path / "delta")
        same(got, session.predict(models.inputs(1)))
        assert session.version == models.version(tmp_path / "v1")
    assert open_bundle(tmp_path / "v1").manifest["refreshed"]["generation"] == 1


def test_the_report_is_json(base, tmp_path):
    report = tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1").as_dict()
    assert json.loads(json.dumps(report))["version"]["sequence"] == 1
