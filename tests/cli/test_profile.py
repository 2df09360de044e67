"""`tfctr profile`: the folder it writes, what it prints, and what it refuses."""

import json
import pathlib
import resource
import signal
from collections.abc import Callable

import numpy as np
import pytest

from tests.models.zoo import build
from tests.profiling.timeline.perfetto import read_trace
from tfctr.cli.main import main
from tfctr.profiling.timeline.folder import read_timeline

FILES = ["baseline.json", "index.html", "timeline.json", "trace.json"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("a_safe_sparse", tmp_path_factory.mktemp("zoo")).path)


@pytest.fixture(scope="module")
def bundle(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("bundles") / "sparse")
    assert main(["convert", model, out, "--strict"]) == 0
    return out


@pytest.fixture(scope="module")
def no_lookup(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("n_plain_mlp", tmp_path_factory.mktemp("zoo")).path)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["profile", *argv])
        return (code, *capfd.readouterr())

    return call


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    last = err.strip().splitlines()[-1]
    assert code == 2 and "Traceback" not in err, err
    for word in words:
        assert word in last, (word, last)


def files(out: pathlib.Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.is_file())


def test_a_bundle_beside_its_model(model: str, bundle: str, run: Run, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "deep" / "out"
    code, printed, _ = run(bundle, "--baseline", model, "--steps", "3", "--batch", "8", "--out", str(out))
    assert code == 0
    assert str(out / "index.html") in printed and "executor and feed" in printed
    assert files(out) == FILES
    trace = read_trace(out / "trace.json")
    assert [told["title"] for told in trace["otherData"]["timelines"]] == ["bundle", "stock TensorFlow"]
    for name, form in (("timeline.json", "bundle"), ("baseline.json", "stock")):
        timeline = read_timeline(out / name)
        assert (timeline.form, timeline.rows, len(timeline.steps), timeline.complete) == (form, 8, 3, True)
        assert any(event.tags.embedding for event in timeline.events)
    slices = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "op"]
    assert any("tfctr/lookup" in name for name in slices)
    assert list((out / "plugins").rglob("*.xplane.pb"))
    page = (out / "index.html").read_text()
    assert "<html" in page and 'src="http' not in page and 'href="http' not in page.split("<body")[0]


def test_json_is_for_machines(model: str, run: Run, tmp_path: pathlib.Path) -> None:
    code, printed, _ = run(model, "--steps", "2", "--json", "--out", str(tmp_path / "out"))
    told = json.loads(printed)
    assert code == 0 and str(tmp_path / "out" / "trace.json") in told["files"]


def test_a_model_without_lookups_is_profiled(no_lookup: str, run: Run, tmp_path: pathlib.Path) -> None:
    code, _, _ = run(no_lookup, "--steps", "2", "--out", str(tmp_path))
    assert code == 0
    assert not any(event.tags.embedding for event in read_timeline(tmp_path / "timeline.json").events)
    read_trace(tmp_path / "trace.json")


def test_rows_of_a_file_come_in_turn_and_may_fail_half_way(
    model: str, bundle: str, run: Run, tmp_path: pathlib.Path
) -> None:
    given = tmp_path / "rows.npz"
    code, _, _ = run(
        model, "--inputs", str(bad_file(model, given)), "--steps", "2", "--batch", "4", "--out", str(tmp_path / "ok")
    )
    assert code == 0  # the bad row comes later
    for path in (model, bundle):
        out = tmp_path / f"half-{path == model}"
        result = run(path, "--inputs", str(given), "--steps", "5", "--batch", "4", "--out", str(out))
        refused(result, "step 2 of 5", path, str(out))
        timeline = read_timeline(out / "timeline.json")
        assert not timeline.complete and len(timeline.steps) == 2
        assert timeline.error is not None and timeline.error.startswith("step 2 of 5")
        told = read_trace(out / "trace.json")["otherData"]["timelines"][0]
        assert told["complete"] is False and told["error"] == timeline.error
        assert "step 2 of 5" in (out / "index.html").read_text()


def bad_file(model: str, path: pathlib.Path) -> pathlib.Path:
    """12 rows, the last of which has an id far outside of its table."""
    import graph_opt
    from tfctr.bundle.sample_inputs import generate

    info = graph_opt.analyse(model)["signatures"]["serving_default"]
    inputs = generate(info, 12)
    values = next(f["parts"]["values"] for f in info["features"] if f["kind"] == "sparse")
    inputs[values] = inputs[values].copy()
    inputs[values][-1] = 10**6
    np.savez(path, **inputs)
    return path


def test_what_does_not_fit_is_refused_by_name(model: str, no_lookup: str, run: Run, tmp_path: pathlib.Path) -> None:
    out = str(tmp_path / "out")
    refused(run(model, "--steps", "0", "--out", out), "--steps 0", "1 to")
    refused(run(model, "--steps", "-1", "--out", out), "--steps -1")
    refused(run("no/such", "--out", out), "no/such")
    refused(run(model, "--signature", "other", "--out", out), "other", "serving_default")
    refused(run(model, "--baseline", no_lookup, "--out", out), "--baseline", no_lookup, "serving_default", "input ")
    refused(run(model, "--inputs", "missing.npz", "--out", out), "missing.npz")
    assert not (tmp_path / "out").exists()


def test_a_baseline_without_the_signature_is_refused(model: str, run: Run, tmp_path: pathlib.Path) -> None:
    two = str(build("o_two_signatures", tmp_path / "zoo").path)
    signatures = [n for n in _signatures(two) if n not in _signatures(model)]
    result = run(two, "--signature", signatures[0], "--baseline", model, "--out", str(tmp_path / "out"))
    refused(result, "--baseline", model, repr(signatures[0]), "serving_default")


def test_a_baseline_of_other_sizes_is_refused(run: Run, tmp_path: pathlib.Path) -> None:
    import tensorflow as tf

    class Sum(tf.Module):
        def __init__(self, width: int) -> None:
            spec = tf.TensorSpec([None, width], tf.float32, "x")
            self.serve = tf.function(lambda x: {"y": tf.reduce_sum(x, 1)}, input_signature=[spec])

    paths = [str(tmp_path / f"wide{width}") for width in (2, 3)]
    for path, width in zip(paths, (2, 3), strict=True):
        module = Sum(width)
        tf.saved_model.save(module, path, signatures=module.serve)
    result = run(paths[0], "--baseline", paths[1], "--out", str(tmp_path / "out"))
    refused(result, "input 'x' is float32 [?, 3] there and float32 [?, 2]", *paths)
    assert not (tmp_path / "out").exists()


def _signatures(path: str) -> list[str]:
    import graph_opt

    return list(graph_opt.analyse(path)["signatures"])


def test_a_folder_of_other_things_is_left_alone(model: str, run: Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    refused(run(model, "--steps", "1", "--out", str(tmp_path)), str(tmp_path), "no profile")
    refused(run(model, "--steps", "1", "--out", str(tmp_path / "mine.txt")), "is a file")
    assert files(tmp_path) == ["mine.txt"] and (tmp_path / "mine.txt").read_text() == "keep"


def test_a_full_disk_leaves_nothing(model: str, run: Run, tmp_path: pathlib.Path) -> None:
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4300, hard))
    try:
        result = run(model, "--steps", "1", "--out", str(tmp_path / "a" / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    refused(result, str(tmp_path / "a" / "out"), "can't be written")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_other_inputs_is_refused_by_name(model: str, bundle: str, run: Run, tmp_path: pathlib.Path) -> None:
    good = dict(np.load(bad_file(model, tmp_path / "good.npz")))
    values = next(name for name in good if name.endswith("_values"))
    cases = {
        "missing": ({k: v for k, v in good.items() if k != values}, values),
        "floats": ({**good, values: good[values].astype(np.float64)}, values),
        "texts": ({**good, values: good[values].astype(str)}, values),
        "scalars": ({k: np.int64(1) for k in good}, "dimensions"),
        "empty": ({k: v[:0] for k, v in good.items()}, "rows.npz"),
    }
    for arrays, word in cases.values():
        np.savez(tmp_path / "rows.npz", **arrays)
        for path in (model, bundle):
            result = run(path, "--inputs", str(tmp_path / "rows.npz"), "--steps", "1", "--out", str(tmp_path / "out"))
            if path == model or word != "dimensions":
                refused(result, word)
            else:
                refused(result)
    assert not (tmp_path / "out").exists()
