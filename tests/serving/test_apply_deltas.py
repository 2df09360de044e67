"""A session takes deltas while it serves: whole versions only, nothing waits, a failure changes nothing."""

import gc
import os
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tfctr
from tests.bundle.deltas import delta_models as models
from tests.serving.server.gate import until
from tfctr.errors import CorruptFileError, UsageError


@pytest.fixture
def session(base):
    with tfctr.ServingSession(base.bundle) as made:
        yield made


def check(session: tfctr.ServingSession, expected: models.Expected, seed: int = 3) -> None:
    given = models.inputs(seed)
    got, rows = session.predict(given), expected.rows
    default = np.full(models.DIM, models.DEFAULT, np.float32)
    np.testing.assert_array_equal(got["items"], np.stack([rows["items"][int(k)] for k in given["item"]]))
    np.testing.assert_array_equal(got["users"], np.stack([rows["users"].get(int(k), default) for k in given["user"]]))
    whole = np.stack([rows["whole"][k] for k in range(models.WHOLE)])
    np.testing.assert_allclose(got["dot"], whole @ got["items"].sum(0), rtol=1e-5, atol=1e-5)


def test_deltas_in_memory_are_those_on_disk(base, session, tmp_path):
    assert session.version.sequence == 0
    check(session, base.expected[0])
    model = session._loaded.model
    for number, delta in enumerate(base.deltas, 1):
        report = session.apply_deltas(delta)
        assert report.version.sequence == session.version.sequence == number
        assert not report.dense and not report.reloaded
        check(session, base.expected[number])
    assert session._loaded.model is model  # rows only: the tables were swapped, nothing was loaded
    on_disk = tfctr.apply_delta(base.bundle, base.deltas, tmp_path / "v3")
    assert on_disk.version == session.version
    assert session.describe()["version"] == {"sequence": 3, "hash": on_disk.version.hash}
    with tfctr.ServingSession(tmp_path / "v3") as other:
        assert other.version == session.version
        given = models.inputs(9)
        one, two = session.predict(given), other.predict(given)
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
        with pytest.raises(UsageError, match="already"):
            other.apply_deltas(base.deltas[2])


def test_a_version_on_disk_takes_the_next_delta_in_memory(base, tmp_path):
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    tfctr.compact(tmp_path / "v2", tmp_path / "flat")
    for folder in ("v2", "flat"):
        with tfctr.ServingSession(tmp_path / folder) as session:
            session.apply_deltas([base.deltas[2]])
            check(session, base.expected[3])


def test_the_deltas_may_go_once_applied(base, session, tmp_path):
    for number in (0, 1):
        delta = shutil.copytree(base.deltas[number], tmp_path / f"delta{number}")
        session.apply_deltas(delta)
        shutil.rmtree(delta)
        check(session, base.expected[number + 1])
    session.apply_deltas(base.deltas[2])
    check(session, base.expected[3])


def test_a_failure_leaves_what_was_there(base, session, tmp_path):
    session.apply_deltas(base.deltas[0])
    with pytest.raises(UsageError, match="delta 2 is missing"):
        session.apply_deltas(base.deltas[2])
    cut = shutil.copytree(base.deltas[1], tmp_path / "cut")
    path = next(cut.glob("tables/*items*"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match="bytes"):
        session.apply_deltas(cut)
    with pytest.raises(UsageError, match="no delta was given"):
        session.apply_deltas([])
    assert session.version.sequence == 1
    check(session, base.expected[1])
    session.apply_deltas(base.deltas[1:])
    check(session, base.expected[3])


def test_a_base_that_is_gone_is_named(base, tmp_path):
    bundle = shutil.copytree(base.bundle, tmp_path / "bundle")
    with tfctr.ServingSession(bundle) as session:
        shutil.rmtree(bundle)
        with pytest.raises((UsageError, CorruptFileError), match=str(bundle)):
            session.apply_deltas(base.deltas[0])
        check(session, base.expected[0])


def test_plain_models_and_closed_sessions_refuse(base, tmp_path):
    with tfctr.ServingSession(base.bundle.parent / "model") as session:
        assert session.version is None
        with pytest.raises(UsageError, match="plain SavedModel"):
            session.apply_deltas(base.deltas[0])
    with pytest.raises(UsageError, match="closed"):
        session.apply_deltas(base.deltas[0])


def test_every_answer_is_of_one_version(base):
    """Threads ask on while versions change; each answer, all outputs of it, is that of one version."""
    given = models.inputs(4, rows=64)
    answers = []
    for number in range(4):
        with tfctr.ServingSession(base.bundle) as session:
            if number:
                session.apply_deltas(base.deltas[:number])
            answers.append(session.predict(given))
    distinct = {one["score"].tobytes() for one in answers}
    assert len(distinct) == 4
    with tfctr.ServingSession(base.bundle) as session:
        seen, wrong, stop = set(), [], threading.Event()

        def ask() -> None:
            last = 0
            while not stop.is_set():
                got = session.predict(given)
                found = [k for k, one in enumerate(answers) if all((got[n] == one[n]).all() for n in one)]
                if not found or found[0] < last:
                    wrong.append(found)
                    return
                last = found[0]
                seen.add(last)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number, delta in enumerate(base.deltas):
            while number not in seen and threads[0].is_alive():  # who asks may get its turn late
                time.sleep(0.005)
            session.apply_deltas(delta)
        while 3 not in seen and threads[0].is_alive():
            time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert seen == {0, 1, 2, 3}


def test_a_new_graph_swaps_under_load(base, tmp_path):
    """A dense part loads a second model; requests see the old one until it is there."""
    graph = (base.bundle / "saved_model.pb").read_bytes()
    changes = models.random_changes(21, base.expected[0])
    models.write_delta(tmp_path / "delta", base.bundle, models.version(base.bundle), changes, graph=graph, manifest={})
    later = models.random_changes(22, base.expected[0].after(changes))
    with tfctr.ServingSession(base.bundle) as session:
        old = session._loaded.model
        wrong, stop = [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    session.predict(models.inputs(5))
                except Exception as error:
                    wrong.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        report = session.apply_deltas(tmp_path / "delta")
        stop.set()
        thread.join()
        assert wrong == []
        assert report.dense and "another graph" in report.reloaded
        assert session._loaded.model is not old
        check(session, base.expected[0].after(changes))
        shutil.rmtree(tmp_path / "delta")
        asked = session.describe()["requests"]["plain"]
        # Rows over the new graph, then another graph, with all that came before still there.
        models.write_delta(tmp_path / "rows", base.bundle, session.version, later)
        session.apply_deltas(tmp_path / "rows")
        check(session, base.expected[0].after(changes).after(later))
        models.write_delta(tmp_path / "again", base.bundle, session.version, {}, graph=graph, manifest={})
        session.apply_deltas(tmp_path / "again")
        check(session, base.expected[0].after(changes).after(later))
        assert session.describe()["requests"]["plain"] == asked + 2
        assert session.version.sequence == 3


def test_nothing_is_left_behind(base, tmp_path, monkeypatch):
    """Descriptors, temporary folders and mappings go with the versions and the session."""
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    graph = (base.bundle / "saved_model.pb").read_bytes()

    def round_() -> None:
        session = tfctr.ServingSession(base.bundle)
        expected = base.expected[0]
        for number in range(4):
            changes = models.random_changes(30 + number, expected)
            expected = expected.after(changes)
            dense = {"graph": graph, "manifest": {}} if number == 2 else {}
            models.write_delta(tmp_path / "delta", base.bundle, session.version, changes, **dense)
            session.apply_deltas(tmp_path / "delta")
            shutil.rmtree(tmp_path / "delta")
            check(session, expected)
        session.close()
        del session
        gc.collect()

    round_()
    before = _descriptors()
    for _ in range(3):
        round_()
    until(lambda: _descriptors() <= before)  # others of this process may have one open for a moment
    assert list(tmp_path.iterdir()) == []


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_sessions_of_one_bundle_change_apart(base):
    with tfctr.ServingSession(base.bundle) as one, tfctr.ServingSession(base.bundle) as other:
        one.apply_deltas(base.deltas[0])
        check(one, base.expected[1])
        check(other, base.expected[0])
        other.apply_deltas(base.deltas[:2])
        check(one, base.expected[1])
        check(other, base.expected[2])


def test_a_bundle_without_the_node_loads_anew(base, tmp_path):
    """Bundles of an earlier tfctr have no node that takes overlays."""
    from tensorflow.core.protobuf import saved_model_pb2

    from tfctr.bundle import manifest, naming

    bundle = shutil.copytree(base.bundle, tmp_path / "bundle")
    path = bundle / naming.MODEL
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    graph = saved.meta_graphs[0].graph_def
    kept = [node for node in graph.node if not node.name.startswith(naming.OVERLAY_NODE)]
    assert len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    path.write_bytes(saved.SerializeToString())
    content = manifest.read(bundle)
    content["model"] |= {"bytes": os.path.getsize(path), "sha256": manifest.file_hash(path)}
    (bundle / naming.MANIFEST).write_bytes(manifest.dump(content))
    changes = models.random_changes(40, base.expected[0])
    models.write_delta(tmp_path / "delta", bundle, models.version(bundle), changes)
    with tfctr.ServingSession(bundle) as session:
        report = session.apply_deltas(tmp_path / "delta")
        assert report.reloaded == "its graph, of an earlier tfctr, has no node that takes overlays"
        check(session, base.expected[0].after(changes))


def test_a_new_graph_keeps_its_engine(tmp_path):
    """Rows and a graph with an OpenVINO tower: the engine is opened over the version's own files."""
    from tests.serving import dense_bundles

    bundle = dense_bundles.convert(dense_bundles.save(tmp_path / "model"), tmp_path / "bundle", "openvino")
    graph = (bundle / "saved_model.pb").read_bytes()
    models.write_delta(tmp_path / "delta", bundle, models.version(bundle), {}, graph=graph, manifest={})
    given = dense_bundles.request(8)
    tfctr.apply_delta(bundle, tmp_path / "delta", tmp_path / "v1")
    with tfctr.ServingSession(bundle) as session, tfctr.ServingSession(tmp_path / "v1") as other:
        assert other.describe()["dense"]["running"] == "openvino"
        before = session.predict(given)
        old = session._loaded.model
        session.apply_deltas(tmp_path / "delta")
        assert session._loaded.model is not old
        after = session.predict(given)
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])
            np.testing.assert_array_equal(other.predict(given)[name], after[name])
        told = session.describe()["dense"]
        assert (told["running"], told["fallback"]) == ("openvino", False)
        assert told["calls"] == 2


def test_a_table_replaced_in_memory_takes_rows(base, tmp_path):
    """`whole` is read by a stock op: its mapping is made again from memory that only the session has."""
    from tfctr.bundle.deltas.delta_writer import DeltaWriter
    from tfctr.bundle.reader import open_bundle

    entry = next(e for e in open_bundle(base.bundle).manifest["store"]["files"] if e["name"] == "whole")
    fresh = np.random.default_rng(0).normal(size=(models.WHOLE, models.DIM)).astype(np.float32)
    expected = base.expected[0].after({"whole": (dict(enumerate(fresh)), [])})
    with tfctr.ServingSession(base.bundle) as session:
        with DeltaWriter(tmp_path / "delta", session.version) as writer:
            path = writer.file_path(entry["index"], "whole.table")
            info = tfctr.core.library.native().write_table(path, "whole", fresh)
            writer.add_file(path, {**entry, "fingerprint": info["fingerprint"]})
            writer.commit({})
        session.apply_deltas(tmp_path / "delta")
        shutil.rmtree(tmp_path / "delta")
        check(session, expected)
        for seed in (50, 51):
            changes = models.random_changes(seed, expected)
            expected = expected.after(changes)
            models.write_delta(tmp_path / "rows", base.bundle, session.version, changes)
            session.apply_deltas(tmp_path / "rows")
            shutil.rmtree(tmp_path / "rows")
            check(session, expected)


def test_tables_in_huge_pages_take_deltas(base):
    native = tfctr.core.library.native()

    def spaces():
        """How the tables of this bundle are kept, by all sessions of the process."""
        return Counter(one["memory"] for one in native.table_spaces() if str(base.bundle) in one["path"])

    gc.collect()
    others = spaces()  # a session of an earlier test may still be held by something
    with tfctr.ServingSession(base.bundle, table_memory="huge_pages") as session:
        assert native.table_memory() == "mapped"  # of other sessions
        check(session, base.expected[0])
        session.apply_deltas(base.deltas[:2])
        check(session, base.expected[2])
        assert set(spaces() - others) == {"huge_pages"}
    with pytest.raises(UsageError, match="tape"):
        tfctr.ServingSession(base.bundle, table_memory="tape")
