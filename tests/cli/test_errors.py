"""Bad input to the command line: one line on stderr that names what is wrong, the exit code, nothing left behind."""

import json
import pathlib
import pickle
import resource
import signal
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.models.zoo import build
from tfctr.cli import common
from tfctr.cli import main as command
from tfctr.cli.main import main
from tfctr.core import library
from tfctr.data.output_files import write_lines

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("a_safe_sparse_one", tmp_path_factory.mktemp("zoo")).path)


@pytest.fixture(scope="module")
def bundle(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("bundles") / "one")
    assert main(["convert", model, out, "--strict"]) == 0
    return out


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(argv))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def refused(result: tuple[int, str, str], code: int, *words: str) -> None:
    """The exit code is ``code``, stderr ends in one line that holds ``words``, and there is no traceback."""
    got, _, err = result
    last = err.strip().splitlines()[-1] if err.strip() else ""
    assert got == code, (got, err)
    assert "Traceback" not in err
    for word in words:
        assert word in last, (word, last)


def test_a_missing_path(run: Run, tmp_path: pathlib.Path) -> None:
    for arguments in (["convert", "no/such", str(tmp_path / "out")], ["inspect", "no/such"], ["predict", "no/such"]):
        refused(run(*arguments), 2, "no/such")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_saved_model(run: Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    refused(run("convert", str(tmp_path), str(tmp_path / "out")), 2, str(tmp_path))
    assert [f.name for f in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize(("name", "word"), [("m.keras", "export"), ("m.h5", "export"), ("m.pb", "SavedModel")])
def test_other_model_files_say_what_to_do(run: Run, tmp_path: pathlib.Path, name: str, word: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    refused(run("convert", str(tmp_path / name), str(tmp_path / "out")), 2, name, word)


def test_wrong_tag_and_signature_list_what_exists(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    out = str(tmp_path / "out")
    refused(run("convert", model, out, "--tags", "train"), 2, "train", "serve")
    refused(run("convert", model, out, "--signature", "nope"), 2, "nope", "serving_default")
    refused(run("inspect", model, "--signature", "nope"), 2, "nope", "serving_default")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_pass_is_named(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    refused(
        run("convert", model, str(tmp_path / "out"), "--disable", "fuse_everything"),
        2,
        "fuse_everything",
        "fuse_lookups",
    )


def test_an_existing_out_is_kept_without_force(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "keep").write_text("x")
    refused(run("convert", model, str(tmp_path)), 2, str(tmp_path), "--force")
    refused(run("convert", model, str(tmp_path), "--force"), 2, str(tmp_path))  # holds no saved_model.pb
    assert (tmp_path / "keep").read_text() == "x"


@pytest.mark.parametrize("where", ["same", "parent", "inside"])
def test_force_never_touches_the_input(run: Run, model: str, where: str) -> None:
    path = pathlib.Path(model)
    out = {"same": path, "parent": path.parent, "inside": path / "variables"}[where]
    refused(run("convert", model, str(out), "--force"), 2)
    assert (path / "saved_model.pb").exists()


def test_a_bundle_is_not_converted_again(run: Run, bundle: str, tmp_path: pathlib.Path) -> None:
    refused(run("convert", bundle, str(tmp_path / "again")), 2, bundle, "bundle")


def test_require_fused_that_matches_nothing_writes_nothing(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    refused(run("convert", model, str(tmp_path / "out"), "--require-fused", "nothing_*"), 4, "nothing_*")
    assert list(tmp_path.iterdir()) == []


def test_require_fused_of_a_disabled_pass(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    arguments = ["--disable", "fuse_lookups", "--require-fused", "*"]
    refused(run("convert", model, str(tmp_path / "out"), *arguments), 4, "*")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_op_library(run: Run, model: str) -> None:
    refused(run("inspect", model, "--op-library", "no.so"), 2, "no.so")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"_drop": True}, ("missing",)),
        ({"extra": np.zeros(2)}, ("extra",)),
    ],
)
def test_predict_names_the_feature(
    run: Run, bundle: str, model: str, tmp_path: pathlib.Path, change: dict[str, object], words: tuple[str, ...]
) -> None:
    inputs = dict(np.load(pathlib.Path(model) / "inputs.npz", allow_pickle=True))
    if change.pop("_drop", False):
        words = (next(iter(inputs)),)
        del inputs[words[0]]
    np.savez(tmp_path / "in.npz", **inputs, **change)
    for path in (bundle, model):
        refused(run("predict", path, "--inputs", str(tmp_path / "in.npz")), 2, *words)


def test_an_input_file_that_does_not_parse(run: Run, bundle: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n")
    refused(run("predict", bundle, "--inputs", str(tmp_path / "x.jsonl")), 2, "x.jsonl:1")


def test_bench_arguments(run: Run, bundle: str, model: str) -> None:
    refused(run("bench", bundle, "--baseline", model, "--batch", "a"), 2, "--batch")
    refused(run("bench", bundle, "--baseline", model, "--batch", "0"), 2, "--batch")


def test_verify_tells_two_models_apart(run: Run, bundle: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = build("a_safe_sparse_one", tmp_path_factory.mktemp("other")).path
    code, out, _ = run("verify", str(other), bundle)
    assert code == 0
    assert "equal" in out


def test_debug_shows_the_traceback(run: Run) -> None:
    code, _, err = run("inspect", "no/such", "--debug")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("where", "word"), [("no/such/r.html", "does not exist"), (".", "folder"), ("{model}/r.html", "inside the model")]
)
def test_a_report_that_cannot_be_written_is_said_first(
    run: Run, model: str, tmp_path: pathlib.Path, where: str, word: str
) -> None:
    report = str(tmp_path / where.replace("{model}", model))
    refused(run("convert", model, str(tmp_path / "out"), "--report", report), 2, word)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"f0": null}', '{"f0": [null]}', '{"f0": ["a"]}', '{"f0": [1.5]}', '{"f0": [[1]]}'])
def test_values_that_do_not_fit_name_file_and_feature(run: Run, bundle: str, tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text + "\n")
    refused(run("predict", bundle, "--inputs", str(tmp_path / "x.jsonl")), 2, "x.jsonl", "f0")


def test_input_files_run_no_code(run: Run, bundle: str, tmp_path: pathlib.Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return pathlib.Path.touch, (tmp_path / "ran",)

    np.savez(tmp_path / "x.npz", f0=np.array([Hostile()], object))
    refused(run("predict", bundle, "--inputs", str(tmp_path / "x.npz")), 2, "x.npz", "Python object")
    (tmp_path / "y.npz").write_bytes(pickle.dumps(Hostile()))
    refused(run("predict", bundle, "--inputs", str(tmp_path / "y.npz")), 2, "y.npz")
    assert not (tmp_path / "ran").exists()


def test_samples_that_the_model_refuses(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"f0": [1000000]}\n')
    arguments = ["--samples", str(tmp_path / "x.jsonl")]
    refused(run("convert", model, str(tmp_path / "out"), *arguments), 2, "x.jsonl", "1000000")
    assert [f.name for f in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--rows", "-1"], ["--threads", "0"], ["--threads", "100000"]])
def test_counts_have_limits(run: Run, bundle: str, arguments: list[str]) -> None:
    refused(run("predict", bundle, *arguments), 2, arguments[0], "is not between")


def test_a_full_disk(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4300, hard))
    try:
        result = run("convert", model, str(tmp_path / "a" / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    refused(result, 2, str(tmp_path / "a" / "out"))
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_are_no_numbers_are_valid_json(capfd: pytest.CaptureFixture[str]) -> None:
    common.print_json({"a": [float("nan"), {"b": float("-inf")}], "c": 1.5})
    assert json.loads(capfd.readouterr().out, parse_constant=pytest.fail) == {
        "a": ["NaN", {"b": "-Infinity"}],
        "c": 1.5,
    }
    write_lines(sys.stdout, {"p": np.array([[np.nan], [1.0]], np.float32)})
    assert capfd.readouterr().out == '{"p": ["NaN"]}\n{"p": [1.0]}\n'


def test_an_instruction_set_that_is_none(
    run: Run, model: str, bundle: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_isa() -> str:
        raise ValueError("TFCTR_ISA is 'bogus', expected baseline, avx2 or avx512 (this CPU: avx2)")

    monkeypatch.setattr(library.native(), "isa_name", no_isa)
    refused(run("predict", bundle), 2, "bogus")
    refused(run("convert", model, str(tmp_path / "out")), 2, "bogus")
    assert list(tmp_path.iterdir()) == []


def test_a_stop_signal_ends_like_ctrl_c(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    cleaned: list[bool] = []

    def work() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)
        return 0

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr(command, "main", work)
    try:
        with pytest.raises(SystemExit) as stopped:
            command.entry()
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])
    assert stopped.value.code == 128 + signal.SIGTERM
    assert cleaned
    assert "stopped by SIGTERM" in capfd.readouterr().err
