"""Bad input and interruptions: one line that says what is wrong, nothing half-written, the bundle as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tfctr
from tests.export.refresh import small
from tests.models.fixtures import Zoo
from tfctr.bundle import naming
from tfctr.cli.main import main
from tfctr.errors import ConvertAnewError, CorruptFileError


@pytest.fixture
def copies(tmp_path: Path, base: tuple[Path, Path]) -> tuple[Path, Path]:
    """(new model, a copy of the bundle that a test may change)."""
    shutil.copytree(base[1], tmp_path / "bundle")
    return small.save(tmp_path / "new", seed=1), tmp_path / "bundle"


def _fails(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    assert main(["refresh", *map(str, arguments)]) == code
    lines = [one for one in capfd.readouterr().err.splitlines() if one.startswith("tfctr: error")]
    assert len(lines) == 1
    return lines[0]


def test_paths(tmp_path: Path, copies: tuple[Path, Path], zoo: Zoo, capfd: Any) -> None:
    new, bundle = copies
    out = tmp_path / "out"
    assert "no such file or folder" in _fails(capfd, 2, bundle, tmp_path / "none", out)
    assert "not a bundle" in _fails(capfd, 2, new, new, out)
    assert "not a bundle" in _fails(capfd, 2, tmp_path / "none", new, out)
    assert "is a tfctr bundle; give the SavedModel" in _fails(capfd, 2, bundle, bundle, out)
    assert "is the bundle to refresh" in _fails(capfd, 2, bundle, new, bundle, "--force")
    assert "lies inside the other" in _fails(capfd, 2, bundle, new, bundle / "inner")
    assert "can't replace the model" in _fails(capfd, 2, bundle, new, new, "--force")
    out.mkdir()
    assert "--force replaces it" in _fails(capfd, 2, bundle, new, out)
    assert "no MetaGraph tagged" in _fails(capfd, 2, bundle, new, tmp_path / "other", "--tags", "training")
    assert "the structure changed" in _fails(capfd, 5, bundle, zoo("n_plain_mlp").path, tmp_path / "other")


def test_a_bundle_without_a_record_is_to_be_converted_anew(
    tmp_path: Path, copies: tuple[Path, Path], capfd: Any
) -> None:
    new, bundle = copies
    (bundle / naming.REFRESH).unlink()
    line = _fails(capfd, 5, bundle, new, tmp_path / "out")
    assert "stored no record" in line and "convert the new model" in line


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_record_is_named(tmp_path: Path, copies: tuple[Path, Path], damage: str) -> None:
    new, bundle = copies
    path = bundle / naming.REFRESH
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    path.write_bytes({"cut": bytes(data[:1000]), "flipped": bytes(data), "emptied": b""}[damage])
    with pytest.raises(CorruptFileError, match="tfctr_refresh.zip: damaged"):
        tfctr.refresh(bundle, new, tmp_path / "out")


def test_a_damaged_vocabulary_of_the_bundle_is_not_copied(tmp_path: Path, copies: tuple[Path, Path]) -> None:
    new, bundle = copies
    (vocabulary,) = (bundle / "assets/tfctr").glob("*.vocab")
    data = bytearray(vocabulary.read_bytes())
    data[9] ^= 0xFF
    vocabulary.write_bytes(data)
    with pytest.raises(CorruptFileError, match=str(vocabulary)):
        tfctr.refresh(bundle, new, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_other_shapes(tmp_path: Path, copies: tuple[Path, Path]) -> None:
    """The graph is the same, what lies under it is not."""
    from tests.export.refresh.retrained import write_checkpoint

    new, bundle = copies
    write_checkpoint(new / "variables/variables", lambda key, v: v[:-1] if v.shape == (40, 4) else v)
    with pytest.raises(ConvertAnewError, match=r"table 'emb_item': float32 \[40, 4\] in the bundle, float32 \[39, 4\]"):
        tfctr.refresh(bundle, new, tmp_path / "out")


def test_passes_of_ones_own_are_not_guessed_at(tmp_path: Path) -> None:
    from graph_opt.report import Pass, PassOutcome

    own = Pass(name="mine", run=lambda item, options: PassOutcome(fired=1), does="something")
    tfctr.convert(small.save(tmp_path / "old"), tmp_path / "bundle", extra_passes=(own,), dense="tensorflow")
    with pytest.raises(ConvertAnewError, match="the pass 'mine' of your own changed the graph"):
        tfctr.refresh(tmp_path / "bundle", small.save(tmp_path / "new", seed=1), tmp_path / "out")


def test_an_interruption_leaves_nothing(tmp_path: Path, copies: tuple[Path, Path], monkeypatch: Any) -> None:
    new, bundle = copies

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graph_opt.conversion.compare_items", stopped)
    with pytest.raises(KeyboardInterrupt):
        tfctr.refresh(bundle, new, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "new"]


def test_killed_while_it_copies(tmp_path: Path, copies: tuple[Path, Path]) -> None:
    """A killed process leaves a hidden folder; the next run removes it and goes through."""
    new, bundle = copies
    code = (
        "import sys, time, graph_opt.renewal.refresh as r\n"
        "r.check_finite = lambda *a: (print('here', flush=True), time.sleep(600))\n"
        "import tfctr; tfctr.refresh(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, str(bundle), str(new), str(tmp_path / "out")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = [p for p in tmp_path.iterdir() if p.name.startswith(".out.tfctr-tmp-")]
    assert any((left / "assets/tfctr").iterdir()) and not (tmp_path / "out").exists()
    notes: list[str] = []
    tfctr.refresh(bundle, new, tmp_path / "out", note=notes.append)
    assert any("left by an interrupted conversion" in one for one in notes)
    assert not left.exists() and (tmp_path / "out/saved_model.pb").is_file()


def test_the_command(tmp_path: Path, copies: tuple[Path, Path], capfd: Any) -> None:
    new, bundle = copies
    stamp = _stamps(bundle)
    assert main(["refresh", str(bundle), str(new), str(tmp_path / "out"), "--report", str(tmp_path / "r.html")]) == 0
    text = capfd.readouterr().out
    for words in (
        "structure: the same export",
        "outputs against the new model: equal",
        "refreshed 1 time since",
        "bundle:",
    ):
        assert words in text
    assert "<html" in (tmp_path / "r.html").read_text()
    assert main(["refresh", str(bundle), str(new), str(tmp_path / "out"), "--force", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["refreshed"]["generation"] == 1 and report["parity"]["ok"]
    assert _stamps(bundle) == stamp, "the bundle is only read"
    assert main(["inspect", str(tmp_path / "out"), "--verify"]) == 0
    assert "refreshed 1 time since its conversion of 20" in capfd.readouterr().out.replace("\n", " ")
    assert main(["verify", str(new), str(tmp_path / "out")]) == 0


def _stamps(folder: Path) -> dict[str, tuple[int, float]]:
    found = {str(p): (p.stat().st_size, p.stat().st_mtime) for p in folder.rglob("*") if p.is_file()}
    assert found and max(t for _, t in found.values()) <= time.time()
    return found
