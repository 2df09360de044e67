"""``tfctr bisect``: exit codes, what it prints, and bad arguments."""

import dataclasses
import json
import pathlib

import pytest

from graph_opt import pipeline
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import PassOutcome
from graph_opt.view import GraphView
from tests.models.fixtures import Zoo
from tfctr.cli.main import main


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> str:
    return str(zoo("a_safe_sparse_one").path)


def output(capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    capfd.readouterr()
    got = main(list(argv))
    captured = capfd.readouterr()
    assert got == code, captured.err
    assert "Traceback" not in captured.err
    return captured.out, captured.err


def break_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the last pass double every output of the packed form."""
    right = pipeline.LAST_PASSES[-1]

    def wrong(item: GraphItem, options: ConvertOptions) -> PassOutcome:
        outcome = right.run(item, options)
        view = GraphView(item.graph_def)
        output = item.signatures[item.packed["serving_default"]].outputs["score"]
        source = view.producer(output.name)
        twice = type(source)(name="tfctr/twice", op="AddV2", input=[source.name, source.name])
        twice.attr["T"].type = output.dtype
        output.name = view.add(twice).name + ":0"
        return outcome

    changed = (*pipeline.LAST_PASSES[:-1], dataclasses.replace(right, run=wrong))
    monkeypatch.setattr(pipeline, "LAST_PASSES", changed)


def test_equal_outputs_end_with_0(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capfd, "bisect", model, "--inputs", f"{model}/inputs.npz")
    assert "pack_inputs" in out and "nothing differs" in out


def test_a_difference_ends_with_3_and_leaves_a_reproduction(
    model: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_packing(monkeypatch)
    folder = tmp_path / "repro"
    out, _ = output(capfd, "bisect", model, "--out", str(folder), code=3)
    for words in ("made different by the pass pack_inputs", "(packed form)", f"python {folder}/run.py"):
        assert words in out, out
    assert sorted(f.name for f in folder.iterdir()) == [
        "README.md", "bundle", "findings.json", "inputs.npz", "model", "run.py",
    ]  # fmt: skip
    out, err = output(capfd, "bisect", str(folder / "model"), "--inputs", str(folder / "inputs.npz"), "--json", code=3)
    told = json.loads(out)
    assert (told["found"], told["culprit"], told["difference"]["form"]) == (True, "pack_inputs", "packed")
    assert "outputs differ after pack_inputs" in err


def test_speed_tells_each_step(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["bisect", model, "--what", "speed", "--rounds", "10", "--json"]) in (0, 3)  # the machine may be busy
    told = json.loads(capfd.readouterr().out)
    timed = [step for step in told["steps"] if step["ratio"] is not None]
    assert {"externalise_tables", "fuse_lookups", "pack_inputs"} <= {step["name"] for step in timed}
    assert all(step["low"] <= step["ratio"] <= step["high"] for step in timed)


BAD = [
    (("--inputs", "no.npz"), ("no.npz", "no such input file")),
    (("--signature", "nope"), ("nope", "serving_default")),
    (("--disable", "fuse_everything"), ("fuse_everything", "fuse_lookups")),
    (("--disable", "externalise_tables"), ("externalise_tables", "can't be disabled")),
    (("--tolerance", "x"), ("--tolerance", "'x'")),
    (("--tolerance=-1",), ("--tolerance", "-1")),
    (("--what", "size"), ("--what", "size", "speed")),
    (("--what", "speed", "--out", "repro"), ("--out", "--what outputs")),
    (("--what", "speed", "--tolerance", "1"), ("--tolerance", "--what outputs")),
    (("--what", "speed", "--rounds", "3"), ("--rounds 3", "at least 10")),
    (("--rows", "0"), ("--rows", "0")),
    (("--user-features", "nobody"), ("--user-features nobody", "no feature or input")),
    (("--user-features", "auto"), ("--user-features auto", "--samples")),
    (("--device-map", "tower=/GPU:0"), ("--device-map tower", "sparse and dense")),
    (("--op-library", "no.so"), ("no.so",)),
    (("--tags", "train"), ("train", "serve")),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_arguments_name_what_is_wrong(
    model: str, arguments: tuple[str, ...], words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = output(capfd, "bisect", model, *arguments, code=2)
    for word in words:
        assert word in err.strip().splitlines()[-1], err


def test_paths_that_do_not_fit(model: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    output(capfd, "bisect", "no/such", code=2)
    (tmp_path / "x").write_text("x")
    _, err = output(capfd, "bisect", model, "--out", str(tmp_path), code=2)
    assert "new or empty folder" in err
    _, err = output(capfd, "bisect", model, "--out", str(tmp_path / "x"), code=2)
    assert "new or empty folder" in err
    assert main(["convert", model, str(tmp_path / "bundle")]) == 0
    _, err = output(capfd, "bisect", str(tmp_path / "bundle"), code=2)
    assert "is a bundle" in err and str(tmp_path / "bundle") in err


def test_inputs_that_the_model_refuses(model: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text('{"f0": [1000000]}\n')
    _, err = output(capfd, "bisect", model, "--inputs", str(tmp_path / "x.jsonl"), code=2)
    assert "refuses the inputs" in err and "1000000" in err
