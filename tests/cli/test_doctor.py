"""`tfctr doctor`: finds what is there, names what is broken."""

import json
import os
import subprocess
import sys

import pytest

from tfctr.cli import doctor
from tfctr.cli.main import main
from tfctr.core import library
from tfctr.engines import isa, providers
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
        "provider openvino",
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


class NativeWith:
    """Stands for the extension module on another CPU; the rule itself is tested in C++."""

    def __init__(self, detected: str, used: str | None):
        self.detected_isa = lambda: detected
        self.used = used

    def isa_name(self) -> str:
        if self.used is None:
            raise ValueError("TFCTR_ISA asks for avx512, but this CPU supports no more than avx2")
        return self.used


@pytest.mark.parametrize(
    ("native", "forced", "status", "value", "note"),
    [
        (NativeWith("avx2", "avx2"), "", "ok", "avx2", "the best this CPU has"),
        (NativeWith("avx512", "baseline"), "baseline", "ok", "baseline", "this CPU has avx512"),
        (NativeWith("avx2", None), "avx512", "broken", "avx512", "no more than avx2"),
    ],
)
def test_instruction_set(monkeypatch, native, forced, status, value, note):
    monkeypatch.setattr(library, "native", lambda: native)
    monkeypatch.setenv("TFCTR_ISA", forced)
    finding = doctor.instruction_set()
    assert (finding.status, finding.value) == (status, value)
    assert note in finding.note


def test_forced_instruction_set_in_a_process():
    """Nothing but the findings: what TensorFlow logs when it is imported stays off the command's output."""
    environment = {**os.environ, "TFCTR_ISA": "baseline"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = [sys.executable, "-m", "tfctr.cli.main", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["instruction set"]["value"] == "baseline"


def test_missing_package_is_no_fault():
    finding = doctor.package("x", "no_such_module_at_all", "for nothing")
    assert (finding.status, finding.value) == ("missing", "not installed")


def test_providers_that_do_not_run_say_why(monkeypatch, capsys):
    monkeypatch.setattr(providers, "why_not", lambda name: f"no {name} on this machine")
    assert main(["doctor", "--json"]) == 0
    found = findings(capsys)
    for name in ("openvino", "tensorrt"):
        assert found[f"provider {name}"]["status"] == "missing"
        assert found[f"provider {name}"]["note"] == f"no {name} on this machine"


def test_what_a_provider_computes_in(monkeypatch):
    monkeypatch.setattr(isa, "cpu_isa", lambda: "avx2")
    assert "this CPU has avx2" in doctor.provider("openvino").note
    monkeypatch.setattr(isa, "cpu_isa", lambda: "amx_bf16")
    assert doctor.provider("openvino").note == "fp32, bf16"
