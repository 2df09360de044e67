"""``tfctr apply-delta`` and ``tfctr compact``, and what the other commands say about versions."""

import json

import pytest

import tfctr
from tfctr.cli.main import main


def run(capfd: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(one) for one in argv])
    told = capfd.readouterr()
    return code, told.out, told.err


def test_apply_compact_and_inspect(base, tmp_path, capfd):
    code, out, _ = run(capfd, "apply-delta", base.bundle, *base.deltas[:2], tmp_path / "v2")
    assert code == 0
    assert "users" in out
    assert "version 2 (" in out
    assert "files linked" in out
    assert f"tfctr compact {tmp_path / 'v2'}" in out
    base.expected[2].check(tmp_path / "v2")
    code, out, _ = run(capfd, "inspect", tmp_path / "v2", "--verify")
    assert code == 0
    assert "version 2 (" in out
    assert "delta 2 of" in out
    assert "overlay" in out
    assert "all checksums are right" in out
    code, out, _ = run(capfd, "compact", tmp_path / "v2", tmp_path / "flat")
    assert code == 0
    assert "version 2 (" in out
    base.expected[2].check(tmp_path / "flat")
    code, out, _ = run(capfd, "inspect", tmp_path / "flat", "--json")
    assert json.loads(out)["version"]["start"]["sequence"] == 2
    assert "compacted at version 2" in run(capfd, "inspect", tmp_path / "flat")[1]
    code, out, _ = run(capfd, "apply-delta", tmp_path / "flat", base.deltas[2], tmp_path / "v3", "--json")
    assert code == 0
    assert json.loads(out)["version"]["sequence"] == 3
    code, out, _ = run(capfd, "compact", tmp_path / "v3", tmp_path / "flat3", "--json")
    assert json.loads(out)["tables"][0]["table_rows"] > 0


def test_the_other_commands_take_versions(base, tmp_path, capfd):
    tfctr.apply_delta(base.bundle, base.deltas, tmp_path / "v3")
    assert run(capfd, "predict", tmp_path / "v3", "--rows", "3")[0] == 0
    assert run(capfd, "verify", tmp_path / "v3", tmp_path / "v3")[0] in (0, 2)
    code, out, _ = run(capfd, "verify", base.bundle.parent / "model", tmp_path / "v3")
    assert code == 3, out  # other rows than the model that the lineage began with


@pytest.mark.parametrize("command", ["apply-delta", "compact"])
def test_errors_are_one_line(base, tmp_path, capfd, command):
    given = [base.deltas[1]] if command == "apply-delta" else []
    bundle = base.bundle if given else tmp_path / "nowhere"
    code, _, error = run(capfd, command, bundle, *given, tmp_path / "out")
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert ("delta 1 is missing" if given else "not a bundle") in error
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.iterdir()) == []


def test_help_teaches(capfd):
    for command in ("apply-delta", "compact"):
        code, out, _ = run(capfd, command, "--help")
        assert code == 0
        assert "only read" in out
        assert "exit codes" in out
