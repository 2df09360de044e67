"""What must not be applied is refused by name, with nothing written and BUNDLE as it was."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import tfctr
from tests.bundle.deltas import delta_models as models
from tfctr.bundle.deltas.lock import lock_path, only_writer
from tfctr.cli.main import main
from tfctr.errors import CorruptFileError, TfctrError, UsageError, VersionError


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def refused(tmp_path):
    def check(bundle, deltas, words, error=UsageError, out="out"):
        before = listing(tmp_path)
        with pytest.raises(error) as raised:
            tfctr.apply_delta(bundle, deltas, tmp_path / out)
        for word in [words] if isinstance(words, str) else words:
            assert word in str(raised.value), (word, str(raised.value))
        assert "\n" not in str(raised.value)
        assert listing(tmp_path) == before

    return check


def copied(folder: Path, out: Path) -> Path:
    shutil.copytree(folder, out)
    return out


def test_a_gap(base, refused):
    refused(base.bundle, base.deltas[1], ["delta 2", "at version 0", "delta 1 is missing"])
    refused(base.bundle, base.deltas[2], ["delta 3", "deltas 1 to 2 are missing"])
    refused(base.bundle, [base.deltas[0], base.deltas[2]], ["delta 3", "delta 2 is missing"])


def test_the_wrong_order(base, refused, tmp_path):
    refused(base.bundle, [base.deltas[1], base.deltas[0]], ["delta 2", "delta 1 is missing", "order"])
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    refused(tmp_path / "v2", base.deltas[0], ["delta 1, which", "already"])


def test_the_same_delta_twice(base, refused, tmp_path):
    refused(base.bundle, [base.deltas[0], base.deltas[0]], ["delta 1, which", "already"])
    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    refused(tmp_path / "v1", base.deltas[0], ["delta 1, which", "already"])
    tfctr.compact(tmp_path / "v1", tmp_path / "flat")  # forgets the list, not the number
    refused(tmp_path / "flat", base.deltas[0], ["gives version 1", "at version 1 already"])


def test_another_branch(base, refused, tmp_path):
    changes = models.random_changes(77, base.expected[0])
    models.write_delta(tmp_path / "other", base.bundle, models.version(base.bundle), changes)
    tfctr.apply_delta(base.bundle, tmp_path / "other", tmp_path / "v1")
    refused(tmp_path / "v1", base.deltas[1], ["delta 2 to another version 1", "made by other deltas"])


def test_a_delta_of_another_model(base, refused, tmp_path):
    tfctr.convert(models.save(models.Model(8), tmp_path / "model"), tmp_path / "bundle")
    refused(tmp_path / "bundle", base.deltas[0], ["another model or conversion", str(base.bundle.parent / "model")])


def test_what_is_no_delta_or_no_bundle(base, refused, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(base.bundle, tmp_path / "empty", "it has no delta.json")
    refused(base.bundle, tmp_path / "nowhere", "no such folder")
    refused(base.bundle, base.bundle, "it is a bundle")
    refused(base.deltas[0], base.deltas[0], "not a bundle")
    refused(base.bundle, [], "no delta was given")


@pytest.mark.parametrize("part", ["delta.json", "tables/*.delta"])
def test_a_cut_delta(base, refused, tmp_path, part):
    delta = copied(base.deltas[0], tmp_path / "delta")
    for path in delta.glob(part):
        data = path.read_bytes()
        for size in (0, 1, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:size])
            refused(base.bundle, delta, str(path), CorruptFileError)
        path.write_bytes(data)


def test_bit_flips_anywhere_in_a_delta(base, refused, tmp_path):
    delta = copied(base.deltas[0], tmp_path / "delta")
    random = np.random.default_rng(1)
    for path in sorted(p for p in delta.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for place in {0, len(data) - 1, *random.integers(0, len(data), 12)}:
            flipped = bytearray(data)
            flipped[place] ^= 1 << int(random.integers(0, 8))
            if path.name == "delta.json" and _means_the_same(data, bytes(flipped)):
                continue
            path.write_bytes(flipped)
            refused(base.bundle, delta, "delta", TfctrError)
        path.write_bytes(data)


def _means_the_same(one: bytes, other: bytes) -> bool:
    """A flip between two blanks leaves the same JSON."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_a_half_copied_delta(base, refused, tmp_path):
    for path in sorted(p for p in base.deltas[0].rglob("*") if p.is_file()):
        delta = copied(base.deltas[0], tmp_path / "delta")
        (delta / path.relative_to(base.deltas[0])).unlink()
        refused(base.bundle, delta, path.name, TfctrError)
        shutil.rmtree(delta)


def test_an_exchanged_file_of_another_delta(base, refused, tmp_path):
    delta = copied(base.deltas[0], tmp_path / "delta")
    one, other = (next(d.glob("tables/*users*")) for d in (delta, base.deltas[1]))
    data = other.read_bytes()
    one.write_bytes(data[: one.stat().st_size].ljust(one.stat().st_size, b"\0"))
    refused(base.bundle, delta, [str(one), "SHA-256"], CorruptFileError)


def test_a_newer_format(base, refused, tmp_path):
    delta = copied(base.deltas[0], tmp_path / "delta")
    content = json.loads((delta / "delta.json").read_text()) | {"format": 2}
    (delta / "delta.json").write_text(json.dumps(content))
    refused(base.bundle, delta, "delta format 2", VersionError)


def test_a_half_copied_bundle(base, refused, tmp_path):
    """Of BUNDLE: nothing is written. Of a version: it does not open."""
    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    files = [p for p in (tmp_path / "v1").rglob("*") if p.is_file() and p.parent.name == "tfctr"]
    assert sum(p.suffix == ".overlay" for p in files) == 3
    for path in [*files, tmp_path / "v1" / "saved_model.pb"]:
        half = copied(tmp_path / "v1", tmp_path / "half")
        gone = half / path.relative_to(tmp_path / "v1")
        data = gone.read_bytes()
        gone.unlink()
        refused(half, base.deltas[1], str(gone), CorruptFileError)
        with pytest.raises(TfctrError):
            tfctr.ServingSession(half)
        gone.write_bytes(data[: len(data) // 2])
        refused(half, base.deltas[1], str(gone), CorruptFileError)
        shutil.rmtree(half)
    (tmp_path / "v1" / "assets.extra" / "tfctr_manifest.json").unlink()
    refused(tmp_path / "v1", base.deltas[1], "not a bundle")


def test_an_overlay_of_another_version_is_found(base, refused, tmp_path):
    """The graph and the manifest have its fingerprint, so mixed folders do not open."""
    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    mixed = copied(tmp_path / "v2", tmp_path / "mixed")
    old = next((tmp_path / "v1").rglob("*items*.overlay"))
    new = next(mixed.rglob("*items*.overlay"))
    new.unlink()
    shutil.copyfile(old, new)
    with pytest.raises(TfctrError):
        tfctr.ServingSession(mixed)
    manifest = mixed / "assets.extra" / "tfctr_manifest.json"
    content = json.loads(manifest.read_text())
    for entry in content["store"]["files"]:
        if entry["file"].endswith(new.name):
            entry["bytes"] = new.stat().st_size
    manifest.write_text(json.dumps(content))
    with pytest.raises(TfctrError, match="fingerprint"):
        tfctr.ServingSession(mixed)
    refused(mixed, base.deltas[2], ["fingerprint", new.name], CorruptFileError)


def test_damage_is_not_copied_under_a_new_checksum(base, refused, tmp_path):
    """A flipped bit in the rows of an overlay or of a base is found before it is merged."""
    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "v1")
    for pattern in ("*users*.overlay", "*users*.hash", "*items*.table"):
        bad = copied(tmp_path / "v1", tmp_path / "bad")
        path = next(bad.rglob(pattern))
        data = bytearray(path.read_bytes())
        data[5] ^= 4
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match=path.name):
            tfctr.compact(bad, tmp_path / "out")
        if path.suffix == ".overlay":
            refused(bad, base.deltas[1], path.name, CorruptFileError)
        assert main(["inspect", str(bad), "--verify"]) == 2
        assert not (tmp_path / "out").exists()
        shutil.rmtree(bad)


def test_a_lineage_that_does_not_add_up(base, refused, tmp_path):
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    path = tmp_path / "v2" / "assets.extra" / "tfctr_manifest.json"
    whole = json.loads(path.read_text())

    def edited(change) -> None:
        content = json.loads(json.dumps(whole))
        change(content["version"])
        path.unlink()
        path.write_text(json.dumps(content))

    edited(lambda version: version.update(sequence=1))
    refused(tmp_path / "v2", base.deltas[2], "its manifest says version 1", CorruptFileError)
    edited(lambda version: version["deltas"].pop())
    refused(tmp_path / "v2", base.deltas[2], "its manifest says version 2", CorruptFileError)
    edited(lambda version: version.pop("hash"))
    refused(tmp_path / "v2", base.deltas[2], "'hash'", CorruptFileError)
    edited(lambda version: version["origin"].pop("source"))
    refused(tmp_path / "v2", base.deltas[2], "origin", CorruptFileError)


def test_a_key_both_added_and_removed_is_refused(base, tmp_path):
    key = int(models.KEYS[0])
    changes = {"users": ({key: np.ones(models.DIM, np.float32)}, [key])}
    with pytest.raises(ValueError, match=str(key)):
        models.write_delta(tmp_path / "delta", base.bundle, models.version(base.bundle), changes)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_not_there(base, refused, tmp_path):
    from tfctr.bundle.deltas.delta_writer import DeltaWriter

    native = tfctr.core.library.native()
    for index, name, words in ((77, "items", "file 77"), (0, "nothing", "'nothing'")):
        with DeltaWriter(tmp_path / f"d{index}", models.version(base.bundle)) as writer:
            path = writer.table_path(index, name)
            native.write_delta_file(
                path, name, [1], np.ones(models.DIM, np.float32), [], hashed=True, dtype="float32", width=models.DIM
            )
            writer.add_table(index=index, kind="hash", name=name, rows=1, removed=0)
            writer.commit({})
        refused(base.bundle, tmp_path / f"d{index}", words, CorruptFileError)


def test_out_is_not_overwritten(base, refused, tmp_path):
    (tmp_path / "out").mkdir()
    refused(base.bundle, base.deltas[0], "exists already; --force")
    with pytest.raises(UsageError, match=r"holds no saved_model\.pb"):
        tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "out", force=True)
    (tmp_path / "out").rmdir()
    tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "out")
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "out", force=True)
    base.expected[2].check(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_out_lies_apart(base, tmp_path):
    bundle = copied(base.bundle, tmp_path / "bundle")
    delta = copied(base.deltas[0], tmp_path / "delta")
    before = listing(tmp_path)
    for out, words in (
        (bundle / "new" / "out", "lies inside the bundle"),
        (bundle, "can't replace the bundle"),
        (tmp_path, "holds"),
        (delta, "the delta"),
        (delta / "tables" / "out", "the delta"),
    ):
        with pytest.raises(UsageError, match=words):
            tfctr.apply_delta(bundle, delta, out)
        if out != delta and delta not in out.parents:
            with pytest.raises(UsageError, match=words):
                tfctr.compact(bundle, out)
        assert listing(tmp_path) == before


def test_a_disk_that_can_not_be_written(base, tmp_path):
    if not os.path.ismount("/proc") or os.access("/proc/sys", os.W_OK) and os.path.isdir("/proc/sys/tfctr"):
        pytest.skip("no read-only file system here")
    with pytest.raises(UsageError, match="can't be written"):
        tfctr.apply_delta(base.bundle, base.deltas[0], "/proc/tfctr-test/out")


def test_a_full_disk_leaves_nothing(base, tmp_path, monkeypatch):
    import errno

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(UsageError, match="the disk is full; nothing was written"):
        tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "a" / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["EPERM", "EMLINK", "EXDEV", "EOPNOTSUPP"])
def test_without_hard_links_files_are_copied_and_it_is_said(base, tmp_path, monkeypatch, code):
    import errno

    def no_links(*_: object) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(os, "link", no_links)
    report = tfctr.apply_delta(base.bundle, base.deltas[0], tmp_path / "out")
    assert report.links["linked"] == 0
    assert os.strerror(getattr(errno, code)) in report.links["reason"]
    base.expected[1].check(tmp_path / "out")


def test_one_writer_at_a_time(base, tmp_path):
    out = tmp_path / "out"
    with only_writer(out), pytest.raises(UsageError, match=f"another process is writing it now.*{os.getpid()}"):
        tfctr.apply_delta(base.bundle, base.deltas[0], out)
    assert list(tmp_path.iterdir()) == []
    tfctr.apply_delta(base.bundle, base.deltas[0], out)
    assert not lock_path(out).exists()


def test_many_at_once_give_one_whole_version(base, tmp_path):
    out, results = tmp_path / "out", []

    def attempt() -> None:
        try:
            results.append(tfctr.apply_delta(base.bundle, base.deltas[0], out).version.sequence)
        except UsageError as error:
            results.append(str(error))

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(1) == 1
    assert all(one == 1 or "writing it now" in one or "exists already" in one for one in results), results
    base.expected[1].check(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_processes_at_once_give_one_whole_version(base, tmp_path):
    import multiprocessing

    out = tmp_path / "out"
    context = multiprocessing.get_context("fork")
    start = context.Event()

    def attempt() -> None:
        start.wait()
        try:
            tfctr.apply_delta(base.bundle, base.deltas[0], out)
        except UsageError as error:
            os._exit(2 if "writing it now" in str(error) or "exists already" in str(error) else 1)
        os._exit(0)

    children = [context.Process(target=attempt) for _ in range(4)]
    for child in children:
        child.start()
    start.set()
    for child in children:
        child.join()
    assert sorted(child.exitcode for child in children) == [0, 2, 2, 2]
    base.expected[1].check(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
