"""`tfctr doctor`: finds what is there, names what is broken."""

import json

import pytest

from tfctr.cli import doctor
from tfctr.cli.main import main
from tfctr.core import library
from tfctr.errors import InternalError


def findings(capsys) -> dict[str, dict]:
    found = json.loads(capsys.readouterr().out)
    return {finding["name"]: finding for finding in found}


def test_everything_needed_is_ok(capsys):
    assert main(["doctor", "--json"]) == 0
    found = findings(capsys)
    for name in (
        "tfctr",
        "python",
        "tensorflow",
        "op library",
        "executor",
        "instruction set",
        "openvino",
        "onnxruntime",
    ):
        assert found[name]["status"] == "ok", found[name]
    assert found["tensorflow"]["value"].startswith("2.21.")


def test_table(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "op library" in out
    assert "instruction set" in out


def test_broken_op_library_ends_with_1(monkeypatch, capsys):
    def load():
        raise InternalError("the op library is missing: here")

    monkeypatch.setattr(library, "load", load)
    assert main(["doctor", "--json"]) == 1
    broken = findings(capsys)["op library"]
    assert broken["status"] == "broken"
    assert "missing: here" in broken["note"]


@pytest.mark.parametrize(
    ("flags", "forced", "status", "value"),
    [
        ("fpu sse2", None, "ok", "baseline"),
        ("fpu avx2 fma", None, "ok", "avx2"),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl", None, "ok", "avx512"),
        ("avx2 fma avx512f", None, "ok", "avx2"),
        ("avx2 fma", "baseline", "ok", "baseline"),
        ("avx2 fma", "avx512", "broken", "avx512"),
        ("avx2 fma", "neon", "broken", "neon"),
    ],
)
def test_instruction_set(monkeypatch, tmp_path, flags, forced, status, value):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: none\n")
    monkeypatch.setattr(doctor, "CPUINFO", tmp_path / "cpuinfo")
    if forced:
        monkeypatch.setenv("TFCTR_ISA", forced)
    else:
        monkeypatch.delenv("TFCTR_ISA", raising=False)
    finding = doctor.instruction_set()
    assert (finding.status, finding.value) == (status, value)


def test_missing_provider_is_no_fault():
    finding = doctor.provider("x", "no_such_module_at_all", "for nothing")
    assert (finding.status, finding.value) == ("missing", "not installed")
