"""What a delta refuses, and what is left after a run that was cut short: nothing."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.bundle.deltas import delta_models as models
from tests.graph_opt.delta import changes
from tfctr.bundle.deltas import delta_writer
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.cli.main import main
from tfctr.errors import CorruptFileError, TfctrError, UsageError

Base = tuple[Path, Path]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model, trained on; no dense weight changed."""
    model = models.Model()
    changes.train(model, 1, dense=False)
    return Path(tf.train.Checkpoint(ranker=model).write(str(tmp_path_factory.mktemp("newer") / "ckpt")))


def test_out_is_looked_at_first(base: Base, newer: Path, tmp_path: Path) -> None:
    out = tmp_path / "delta"
    tfctr.make_delta(base[1], newer, out)
    with pytest.raises(UsageError, match="exists already; --force replaces it"):
        tfctr.make_delta(base[1], newer, out)
    again = tfctr.make_delta(base[1], newer, out, force=True)
    assert again.rows
    for inside in (base[1] / "delta", base[1]):
        with pytest.raises(UsageError, match="only read|lies in"):
            tfctr.make_delta(base[1], newer, inside)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    with pytest.raises(UsageError, match="replaces deltas only"):
        tfctr.make_delta(base[1], newer, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "dear"


def test_wrong_paths_are_named(base: Base, newer: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a bundle"):
        tfctr.make_delta(base[0], newer, tmp_path / "delta")
    with pytest.raises(UsageError, match="is a tfctr bundle; give the SavedModel"):
        tfctr.make_delta(base[1], base[1], tmp_path / "delta")
    with pytest.raises(UsageError, match="nothing"):
        tfctr.make_delta(base[1], tmp_path / "nothing", tmp_path / "delta")
    with pytest.raises(UsageError, match="root is given, but this is no checkpoint"):
        tfctr.make_delta(base[1], base[0], tmp_path / "delta", root="model")
    with pytest.raises(UsageError, match="compare_by='date'"):
        tfctr.make_delta(base[1], newer, tmp_path / "delta", compare_by="date")
    assert list(tmp_path.iterdir()) == []


def test_nan_in_a_dense_weight_is_named(base: Base, tmp_path: Path) -> None:
    model = models.Model()
    model.kernel.assign(tf.where(tf.range(3 * models.DIM) == 5, np.float32("nan"), model.kernel))
    prefix = tf.train.Checkpoint(ranker=model).write(str(tmp_path / "ckpt"))
    with pytest.raises(UsageError, match=r"weight 'kernel' of the new model: 1 of 24 values .* the first at \[5\]"):
        tfctr.make_delta(base[1], prefix, tmp_path / "delta")
    assert not (tmp_path / "delta").exists()


def test_two_models_in_one_checkpoint_are_ambiguous(base: Base, tmp_path: Path) -> None:
    model, shadow = models.Model(), models.Model()
    changes.train(model, 1, dense=False)
    prefix = tf.train.Checkpoint(ranker=model, shadow=shadow).write(str(tmp_path / "ckpt"))
    with pytest.raises(UsageError, match=r"may be any of 'ranker', 'shadow'; give the name of the one \(--root\)"):
        tfctr.make_delta(base[1], prefix, tmp_path / "delta")
    with pytest.raises(UsageError, match=r"has nothing under the name 'rank' \(--root\); it has .*'ranker', 'shadow'"):
        tfctr.make_delta(base[1], prefix, tmp_path / "delta", root="rank")
    assert tfctr.make_delta(base[1], prefix, tmp_path / "d1", root="shadow").empty
    assert tfctr.make_delta(base[1], prefix, tmp_path / "d2", root="ranker").rows


def test_a_checkpoint_of_something_else(base: Base, tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(other=tf.Variable(tf.zeros([3]))).write(str(tmp_path / "ckpt"))
    with pytest.raises(TfctrError, match=r"has no .*'.*; is it a checkpoint of this model\?"):
        tfctr.make_delta(base[1], prefix, tmp_path / "delta")


def test_damage_is_found(base: Base, newer: Path, tmp_path: Path) -> None:
    for path in newer.parent.glob("ckpt.*"):
        shutil.copy(path, tmp_path)
    shard = next(tmp_path.glob("ckpt.data-*"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    with pytest.raises(CorruptFileError, match="checksum does not match|damaged"):
        tfctr.make_delta(base[1], tmp_path / "ckpt", tmp_path / "delta")
    assert not (tmp_path / "delta").exists()


def _in_child(work: Callable[[], object]) -> int:
    """Status of a process in which ``work`` ran."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(9)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize(
    ("owner", "moment"), [(DeltaWriter, "commit"), (delta_writer, "put_in_place"), (DeltaWriter, "add_table")]
)
def test_killed_while_writing(
    base: Base, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, moment: str
) -> None:
    out = tmp_path / "delta"

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(owner, moment, killed)
        status = _in_child(lambda: tfctr.make_delta(base[1], newer, out))
    assert os.WIFSIGNALED(status)
    assert not out.exists()
    with pytest.raises(UsageError):
        tfctr.apply_delta(base[1], [out], tmp_path / "version")
    left = [p for p in tmp_path.iterdir() if "lock" not in p.name]
    assert left, "nothing was being written"
    report = tfctr.make_delta(base[1], newer, out)  # takes what was left away
    assert report.rows
    assert sorted(p.name for p in tmp_path.iterdir() if "lock" not in p.name) == ["delta"]


def test_a_full_disk_leaves_nothing(base: Base, newer: Path, tmp_path: Path) -> None:
    out = tmp_path / "delta"

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises((UsageError, OSError), match="disk is full|can't be written|File too large"):
            tfctr.make_delta(base[1], newer, out)

    assert _in_child(full) == 0
    assert [p for p in tmp_path.iterdir() if "lock" not in p.name] == []


def test_command(base: Base, newer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delta", str(base[1]), str(newer), str(tmp_path / "delta")]) == 0
    told = capsys.readouterr().out
    assert "users" in told
    assert "no dense weight changed" in told
    assert "delta 1, from version 0 to 1" in told
    assert main(["delta", str(base[1]), str(newer), str(tmp_path / "delta"), "--json", "--force"]) == 0
    assert '"sequence": 1' in capsys.readouterr().out
    assert main(["delta", str(base[1]), str(newer), str(tmp_path / "delta")]) == 2
    assert "exists already" in capsys.readouterr().err
