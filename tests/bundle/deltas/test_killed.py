"""Killed at any step of writing to disk, a run leaves the bundle or nothing at OUT, and the next one goes through."""

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

import tfctr

# Every step that changes what is on disk, or makes it durable.
STEPS = ("fsync", "rename", "link", "mkdir")


def _run(kill_at: int, work: str, arguments: tuple, steps: tuple[str, ...] = STEPS) -> None:
    """In a child: the ``kill_at``-th of these steps ends the process at once, as SIGKILL would."""
    count = 0

    def counted(function):
        def step(*args, **kwargs):
            nonlocal count
            count += 1
            if count == kill_at:
                os._exit(9)
            return function(*args, **kwargs)

        return step

    for name in steps:
        setattr(os, name, counted(getattr(os, name)))
    getattr(tfctr, work)(*arguments)
    os._exit(0)


def killed(work: str, arguments: tuple, out: Path, before: set[str], check, every: int) -> int:
    """Runs ``work`` with a kill at step 1, 1 + every, ... until it goes through; each time, then, undisturbed."""
    context = multiprocessing.get_context("fork")
    for kill_at in range(1, 200, every):
        child = context.Process(target=_run, args=(kill_at, work, arguments))
        child.start()
        child.join()
        if child.exitcode == 0:
            check(out)
            return kill_at
        assert child.exitcode == 9
        visible = {p.name for p in out.parent.iterdir() if not p.name.startswith(".")}
        if out.exists():
            check(out)  # the rename was done
            visible.discard(out.name)
            shutil.rmtree(out)
        assert visible == before
        getattr(tfctr, work)(*arguments)
        check(out)
        assert {p.name for p in out.parent.iterdir()} == before | {out.name}
        shutil.rmtree(out)
    raise AssertionError("it never went through")


@pytest.fixture
def names(tmp_path):
    return lambda: {p.name for p in tmp_path.iterdir()}


EVERY = [pytest.param(1, marks=pytest.mark.long), 6]


@pytest.mark.parametrize("every", EVERY)
def test_apply(base, tmp_path, names, every):
    out = tmp_path / "out"
    steps = killed("apply_delta", (base.bundle, base.deltas, out), out, names(), base.expected[3].check, every)
    assert steps > 15  # links, folders, files, the rename


@pytest.mark.parametrize("every", EVERY)
def test_compact(base, tmp_path, names, every):
    tfctr.apply_delta(base.bundle, base.deltas[:2], tmp_path / "v2")
    out = tmp_path / "out"
    steps = killed("compact", (tmp_path / "v2", out), out, names(), base.expected[2].check, every)
    assert steps > 15


def test_replacing_a_version(base, tmp_path):
    """With force, killed at a rename: what was at OUT is there, or the next run puts it back."""
    context = multiprocessing.get_context("fork")
    out = tmp_path / "out"
    for kill_at in range(1, 200):
        shutil.rmtree(out, ignore_errors=True)
        tfctr.apply_delta(base.bundle, base.deltas[0], out)
        child = context.Process(target=_forced, args=(kill_at, base.bundle, base.deltas[:2], out))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        if not out.exists():
            with pytest.raises(tfctr.errors.UsageError, match="back in place"):
                tfctr.apply_delta(base.bundle, base.deltas[:2], out)
        sequence = len(tfctr.bundle.reader.read_manifest(out)["version"]["deltas"])
        base.expected[sequence].check(out)
        tfctr.apply_delta(base.bundle, base.deltas[:2], out, force=True)
        base.expected[2].check(out)
        assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert kill_at == 3  # aside, in place, and through


def _forced(kill_at: int, bundle: Path, deltas: list[Path], out: Path) -> None:
    plain = tfctr.apply_delta
    tfctr.apply_delta = lambda *arguments: plain(*arguments, force=True)
    _run(kill_at, "apply_delta", (bundle, deltas, out), ("rename",))
