"""From SavedModel to bundle: what is written, that every loader takes it, and what leaves nothing behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graph_opt
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import Pass, PassOutcome
from graph_opt.store_files import constant_node
from graph_opt.view import GraphView, canonical, node_of
from tests.models.base import BuiltModel, run_stock
from tests.models.fixtures import Zoo
from tfctr.bundle.reader import open_bundle, verify_files
from tfctr.errors import CorruptFileError, InputError, OutputsDifferError, StrictRefusal, UsageError


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> BuiltModel:
    return zoo("a_safe_sparse_one")


def run_eager(path: Path, model: BuiltModel) -> dict[str, np.ndarray]:
    function = tf.saved_model.load(str(path)).signatures[model.signature]
    return {k: v.numpy() for k, v in function(**{k: tf.constant(v) for k, v in model.inputs.items()}).items()}


def assert_outputs(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(np.asarray(got[name], np.float64), np.asarray(value, np.float64), 1e-5, 1e-6)


def test_every_loader_takes_it_from_anywhere(model: BuiltModel, tmp_path: Path) -> None:
    graph_opt.convert(model.path, tmp_path / "first" / "bundle", strict=True)
    moved = tmp_path / "moved"
    (tmp_path / "first" / "bundle").rename(moved)
    for path in moved.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    moved.chmod(0o555)
    try:
        assert_outputs(run_eager(moved, model), model.outputs)
        assert_outputs(run_stock(moved, {model.signature: model.inputs})[model.signature], model.outputs)
    finally:
        for path in [moved, *moved.rglob("*")]:
            path.chmod(0o755)
    bundle = open_bundle(moved)
    assert verify_files(moved, bundle.manifest) > 0
    assert not (moved / "variables").exists()
    info = bundle.signatures[model.signature]
    assert info["packed"] == "serving_default__packed"
    assert [f["kind"] for f in info["features"]] == ["sparse"]
    assert [entry["status"] for entry in info["lookups"]] == ["fused"]
    assert info["boundary"][0]["dtype"] == "float32"


def test_two_bundles_of_one_model_do_not_meet(zoo: Zoo, tmp_path: Path) -> None:
    """Resources of two bundles in one eager process have names of their own."""
    model = zoo("e_vocab_file")
    graph_opt.convert(model.path, tmp_path / "a")
    graph_opt.convert(model.path, tmp_path / "b")
    ids = [open_bundle(tmp_path / name).manifest["bundle_id"] for name in ("a", "b")]
    assert ids[0] != ids[1]
    loaded = [tf.saved_model.load(str(tmp_path / name)) for name in ("a", "b")]
    shutil.rmtree(tmp_path / "b")
    inputs = {k: tf.constant(v) for k, v in model.inputs.items()}
    for one in loaded:
        got = {k: v.numpy() for k, v in one.signatures[model.signature](**inputs).items()}
        assert_outputs(got, model.outputs)


def test_mutable_state_survives(zoo: Zoo, tmp_path: Path) -> None:
    model = zoo("m_mutable_table")
    report = graph_opt.convert(model.path, tmp_path / "bundle")
    assert (tmp_path / "bundle" / "variables" / "variables.index").is_file()
    assert [m["kind"] for m in report.manifest["mutable_state"]] == ["table"]
    assert_outputs(run_eager(tmp_path / "bundle", model), model.outputs)
    assert_outputs(run_stock(tmp_path / "bundle", {model.signature: model.inputs})[model.signature], model.outputs)


def test_assets_survive(zoo: Zoo, tmp_path: Path) -> None:
    model = zoo("e_vocab_file")
    graph_opt.convert(model.path, tmp_path / "bundle")
    for path in (model.path / "assets").iterdir():
        assert (tmp_path / "bundle" / "assets" / path.name).read_bytes() == path.read_bytes()


def test_unselected_signatures_survive_unoptimised(zoo: Zoo, tmp_path: Path) -> None:
    model = zoo("o_two_signatures")
    report = graph_opt.convert(model.path, tmp_path / "bundle", signatures=("user_vector",))
    signatures = report.manifest["signatures"]
    assert signatures["user_vector"]["optimised"] and not signatures["serving_default"]["optimised"]
    assert {e["status"] for e in signatures["user_vector"]["lookups"]} == {"fused"}
    requests = {model.signature: (model.inputs, model.outputs), **model.others}
    got = run_stock(tmp_path / "bundle", {name: inputs for name, (inputs, _) in requests.items()})
    for name, (_, outputs) in requests.items():
        assert_outputs(got[name], outputs)


def test_a_bundle_is_not_converted_again(model: BuiltModel, tmp_path: Path) -> None:
    graph_opt.convert(model.path, tmp_path / "bundle")
    with pytest.raises(UsageError, match="is a tfctr bundle already"):
        graph_opt.convert(tmp_path / "bundle", tmp_path / "again")
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def _double_outputs(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """A rule that is wrong: every output is one more."""
    view = GraphView(item.graph_def)
    for name in item.optimise:
        for info in item.signatures[name].outputs.values():
            value = np.array(1, tf.as_dtype(info.dtype).as_numpy_dtype)
            one = view.add(constant_node(view.unique_name("wrong/one"), value)).name
            node = view.add(constant_node(view.unique_name("wrong/sum"), value))
            node.op = "AddV2"
            node.attr.clear()
            node.attr["T"].type = info.dtype
            view.set_inputs(node.name, [info.name, one])
            info.name = canonical(node.name)
    return PassOutcome(fired=1)


def test_other_numbers_are_never_written(model: BuiltModel, tmp_path: Path) -> None:
    wrong = Pass(name="wrong", run=_double_outputs, does="a wrong rule")
    with pytest.raises(OutputsDifferError, match="'serving_default', output .* differs by up to"):
        graph_opt.convert(model.path, tmp_path / "bundle", extra_passes=(wrong,))
    assert list(tmp_path.iterdir()) == []


def test_required_lookups(model: BuiltModel, tmp_path: Path) -> None:
    with pytest.raises(StrictRefusal, match="no lookup has such a name"):
        graph_opt.convert(model.path, tmp_path / "bundle", require_fused=("nothing*",))
    with pytest.raises(StrictRefusal, match="no lookup has such a name"):
        graph_opt.convert(model.path, tmp_path / "bundle", require_fused=("*",), disable=("fuse_lookups",))
    assert list(tmp_path.iterdir()) == []
    graph_opt.convert(model.path, tmp_path / "bundle", require_fused=("*",))


def test_damaged_variables_are_named(model: BuiltModel, tmp_path: Path) -> None:
    shutil.copytree(model.path, tmp_path / "model")
    shard = tmp_path / "model" / "variables" / "variables.data-00000-of-00001"
    data = bytearray(shard.read_bytes())
    for place in range(0, len(data), 64):
        data[place] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(CorruptFileError, match="(?i)checksum"):
        graph_opt.convert(tmp_path / "model", tmp_path / "bundle")
    shard.write_bytes(data[:100])
    with pytest.raises((CorruptFileError, UsageError), match="variables"):
        graph_opt.convert(tmp_path / "model", tmp_path / "bundle")
    shutil.rmtree(tmp_path / "model" / "variables")
    with pytest.raises(UsageError, match=r"variables.index is missing"):
        graph_opt.convert(tmp_path / "model", tmp_path / "bundle")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_disabled_passes_still_give_a_right_bundle(model: BuiltModel, tmp_path: Path) -> None:
    disabled = (
        "prune_training",
        "externalise_vocabularies",
        "normalise",
        "fuse_lookups",
        "drop_unused_files",
        "pack_inputs",
    )
    report = graph_opt.convert(model.path, tmp_path / "bundle", disable=disabled)
    assert report.manifest["signatures"][model.signature]["packed"] is None
    assert_outputs(run_eager(tmp_path / "bundle", model), model.outputs)


def test_analysis_writes_and_reads_nothing(zoo: Zoo) -> None:
    model = zoo("a_safe_sparse_w")
    found = graph_opt.analyse(model.path)
    json.dumps(found)
    info = found["signatures"][model.signature]
    assert {e["name"] for e in info["inputs"]} == set(model.inputs)
    assert {e["status"] for e in info["lookups"]} == {"found"}
    assert all(f["bytes"] > 0 for f in found["store"]["files"])
    inputs = graph_opt.analyse(model.path)["signatures"][model.signature]["features"]
    assert {part for f in inputs for part in f["parts"].values()} == set(model.inputs)


def test_nodes_keep_names_people_know(model: BuiltModel, tmp_path: Path) -> None:
    """Outputs and inputs of a signature keep their tensors; only the packed form has new ones."""
    graph_opt.convert(model.path, tmp_path / "bundle")
    before = tf.compat.v1.saved_model.load  # the loader keeps signatures as they are written
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = before(session, ["serve"], str(tmp_path / "bundle"))
        names = {node_of(i.name) for i in meta.signature_def[model.signature].inputs.values()}
        assert names <= {op.name for op in session.graph.get_operations()}


def test_an_interrupt_leaves_nothing(model: BuiltModel, tmp_path: Path) -> None:
    """Ctrl-C at every stage that reports progress, while tables are copied among them."""
    stages: list[str] = []

    def note(stage: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        stages.append(stage)

    graph_opt.convert(model.path, tmp_path / "bundle", progress=note)
    shutil.rmtree(tmp_path / "bundle")
    assert {"copy tables", "passes", "compare outputs", "write the bundle"} <= set(stages)
    for wanted in dict.fromkeys(stages):

        def interrupt(stage: str, done: int, total: int, wanted: str = wanted) -> None:
            if stage == wanted and not (stage == "write the bundle" and done):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            graph_opt.convert(model.path, tmp_path / "bundle", progress=interrupt)
        assert list(tmp_path.iterdir()) == []


def test_samples_and_report_files(model: BuiltModel, tmp_path: Path) -> None:
    import tfctr

    samples = tmp_path / "samples.npz"
    np.savez(samples, **model.inputs)
    report = tfctr.convert(model.path, tmp_path / "bundle", samples_path=samples, report_path=tmp_path / "r.html")
    assert report.manifest["parity"]["ok"]
    assert all(o["drift"] >= 0 for o in report.manifest["parity"]["outputs"])
    page = (tmp_path / "r.html").read_text()
    assert "<html" in page
    assert "How fast?" in page
    assert [row["name"] for row in report.manifest["timing"]["rows"]] == ["stock operations", "tfctr"]
    assert report.manifest["timing"]["ratio"] > 0
    np.savez(samples, wrong=np.zeros(3))
    with pytest.raises(InputError, match="needs the input 'f0'"):
        tfctr.convert(model.path, tmp_path / "other", samples_path=samples)
    with pytest.raises(UsageError, match=r"folder of the report, .*/no, does not exist"):
        tfctr.convert(model.path, tmp_path / "other", report_path=tmp_path / "no" / "r.html")
    assert not (tmp_path / "other").exists()  # said before the work


def test_a_model_that_fails_on_generated_inputs_wants_samples(tmp_path: Path) -> None:
    import tfctr

    class Picky(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.control_dependencies([tf.debugging.assert_greater(x, 1e6, "too small")]):
                return {"y": x * 2.0}

    module = Picky()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    with pytest.raises(InputError, match="refuses generated inputs .*too small.*--samples FILE"):
        tfctr.convert(tmp_path / "model", tmp_path / "bundle")
    np.savez(tmp_path / "small.npz", x=np.zeros(3, np.float32))
    with pytest.raises(InputError, match=r"small\.npz: the model refuses .*too small"):
        tfctr.convert(tmp_path / "model", tmp_path / "bundle", samples_path=tmp_path / "small.npz")
    np.savez(tmp_path / "good.npz", x=np.full(3, 1e7, np.float32))
    tfctr.convert(tmp_path / "model", tmp_path / "bundle", samples_path=tmp_path / "good.npz", strict=True)
