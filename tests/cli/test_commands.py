"""The commands on good input: what they print, for people and for machines."""

import json
import pathlib

import numpy as np
import pytest

from tests.models.zoo import build
from tfctr.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build("a_safe_sparse", tmp_path_factory.mktemp("zoo")).path


@pytest.fixture(scope="module")
def bundle(model: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("bundles") / "sparse"
    assert main(["convert", str(model), str(out), "--strict"]) == 0
    return out


def output(capfd: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main(list(argv)) == code
    return capfd.readouterr().out


def test_convert_writes_a_report_that_stands_alone(bundle: pathlib.Path) -> None:
    page = pathlib.Path(f"{bundle}.report.html").read_text()
    assert "lookups fused" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert sorted(f.name for f in bundle.parent.iterdir()) == ["sparse", "sparse.report.html"]


def test_convert_json_is_the_report(
    model: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(output(capfd, "convert", str(model), str(tmp_path / "out"), "--json"))
    lookups = report["signatures"]["serving_default"]["lookups"]
    assert lookups
    assert {entry["status"] for entry in lookups} == {"fused"}
    assert report["parity"]["ok"]


def test_inspect_shows_lookups_of_either_kind(
    model: pathlib.Path, bundle: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, verify in ((model, []), (bundle, ["--verify"])):
        text = output(capfd, "inspect", str(path), *verify)
        assert "serving_default" in text
        assert "Lookups" in text
        told = json.loads(output(capfd, "inspect", str(path), "--json"))
        assert told["signatures"]["serving_default"]["features"]
        assert told["store"]["files"]


def test_verify_says_equal(model: pathlib.Path, bundle: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert json.loads(output(capfd, "verify", str(model), str(bundle), "--json"))["equal"]


def test_verify_finds_a_flipped_table_byte(
    model: pathlib.Path, bundle: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    for table in (broken / "assets").rglob("*.table"):
        data = bytearray(table.read_bytes())
        data[3 : 4 * (len(data) // 16) : 4] = bytes(b ^ 0x40 for b in data[3 : 4 * (len(data) // 16) : 4])
        table.write_bytes(data)
    assert json.loads(output(capfd, "verify", str(model), str(broken), "--json", code=3))["equal"] is False
    output(capfd, "inspect", str(broken), "--verify", code=2)


def test_predict_prints_rows_and_writes_files(
    model: pathlib.Path, bundle: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = dict(np.load(model / "outputs.npz", allow_pickle=True))
    for path in (model, bundle):
        output(capfd, "predict", str(path), "--inputs", str(model / "inputs.npz"), "--output", str(tmp_path / "o.npz"))
        with np.load(tmp_path / "o.npz") as got:
            for name, value in expected.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    assert len(output(capfd, "predict", str(bundle), "--rows", "3").splitlines()) == 3


def test_bench_gives_ratios(model: pathlib.Path, bundle: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(bundle), "--baseline", str(model), "--batch", "8", "--rounds", "5", "--json"]
    told = json.loads(output(capfd, *arguments))
    (figure,) = told["batches"]
    assert set(figure["timings"]) >= {"tfctr", "stock Session"}
    assert figure["speedup"]["median"] > 0
    assert figure["op_time_us"]["tfctr"] > 0


def test_passes_lists_every_pass(capfd: pytest.CaptureFixture[str]) -> None:
    names = [p["name"] for p in json.loads(output(capfd, "passes", "--json"))]
    assert names.index("externalise_tables") < names.index("fuse_lookups") < names.index("pack_inputs")


def test_passes_tells_one_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    text = output(capfd, "passes", "pack_inputs")
    for words in ("why here:", "feeding them is as cheap as packing", "before ", "after "):
        assert words in text
    (row,) = json.loads(output(capfd, "passes", "pack_inputs", "--json"))
    assert row["can_disable"] and row["reasons"] and row["example"]
    assert output(capfd, "passes", "--markdown").startswith("# Passes")
    output(capfd, "passes", "nope", code=2)
    output(capfd, "passes", "pack_inputs", "--markdown", code=2)
