"""The reference graph: no variables, tables and vocabularies as files, the same numbers as the original."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_opt.finish import finish, write_state
from graph_opt.item import GraphItem, output_names, output_tensors
from graph_opt.options import ConvertOptions
from graph_opt.passes.externalise_tables import externalise_tables
from graph_opt.passes.normalise import normalise
from graph_opt.pipeline import REFERENCE_PASSES, run_passes
from graph_opt.saved_model import load_inlined
from graph_opt.sessions import ItemSession
from graph_opt.signature_info import signature_info
from graph_opt.store_files import merge_tables
from graph_opt.view import GraphView
from tests.models.base import BuiltModel
from tests.models.fixtures import Zoo
from tfctr.core import _native, library

library.load()


def reference(model: BuiltModel, folder: Path, **options: Any) -> tuple[GraphItem, list[Any]]:
    item = load_inlined(model.path)
    item.store_name = f"test/{folder.name}"
    item.work_dir = folder
    reports = run_passes(item, REFERENCE_PASSES, ConvertOptions(strict=True, **options))
    return item, reports


def report_of(name: str, reports: list[Any]) -> Any:
    return next(r for r in reports if r.name == name)


def outputs(item: GraphItem, model: BuiltModel, state: Path) -> dict[str, Any]:
    finish(item)
    restore = None
    if item.restore_op:
        write_state(item, str(model.path / "variables" / "variables"), str(state))
        restore = str(state)
    entries = signature_info(item.signatures[model.signature])["inputs"]
    feeds = {entry["tensor"]: model.inputs[entry["name"]] for entry in entries}
    with ItemSession(item, restore=restore) as session:
        values = session.run(output_tensors(item, model.signature), feeds)
    return dict(zip(output_names(item, model.signature), values, strict=True))


def ops(item: GraphItem) -> set[str]:
    return {node.op for node in item.graph_def.node}


@pytest.mark.parametrize(
    "name",
    ["c_keras_onehot", "e_vocab_file", "e_keras_lookup", "h_part_div_ref", "m_control_flow", "m_mutable_table",
     "m_tied_softmax",
     "p_bfloat16_tables", "f_input_layer_v1"],
)  # fmt: skip
def test_the_reference_gives_the_original_numbers(name: str, zoo: Zoo, tmp_path: Path) -> None:
    model = zoo(name)
    item, _ = reference(model, tmp_path)
    assert not ops(item) & {"ReadVariableOp", "ResourceGather", "VariableV2"}
    numeric = [n for n in item.graph_def.node if n.op == "VarHandleOp" and n.attr["dtype"].type != 7]
    assert not numeric
    got = outputs(item, model, tmp_path / "state")
    assert set(got) == set(model.outputs)
    for key, want in model.outputs.items():
        if want.dtype == object:
            assert got[key].tolist() == want.tolist()
        else:
            loose = want.dtype.itemsize == 2
            a, b = np.asarray(got[key], np.float64), np.asarray(want, np.float64)
            np.testing.assert_allclose(a, b, 2e-2 if loose else 1e-5, 1e-2 if loose else 1e-6)


def test_tables_are_files_and_small_dense_variables_constants(zoo: Zoo, tmp_path: Path) -> None:
    item, reports = reference(zoo("c_keras_onehot"), tmp_path)
    assert {f.kind for f in item.files} == {"table"}
    tables = {n.name for n in item.graph_def.node if n.op == "TfctrTable"}
    assert tables == set(item.tables)
    for file in item.files:
        assert file.path is not None
        info = _native.file_info(file.path)
        assert tuple(info["shape"]) == file.shape
        _native.verify_file(file.path)
    assert "became table" in " ".join(reports[1].notes)


def test_large_dense_variables_become_files(zoo: Zoo, tmp_path: Path) -> None:
    few, _ = reference(zoo("n_plain_mlp"), tmp_path)
    assert few.files == []
    (tmp_path / "more").mkdir()
    item, _ = reference(zoo("n_plain_mlp"), tmp_path / "more", dense_limit_bytes=64)
    assert item.files
    np.testing.assert_allclose(
        next(iter(outputs(item, zoo("n_plain_mlp"), tmp_path).values())),
        next(iter(zoo("n_plain_mlp").outputs.values())),
        1e-5,
        1e-6,
    )


def test_analysis_describes_files_without_writing(zoo: Zoo, tmp_path: Path) -> None:
    item = load_inlined(zoo("e_vocab_file").path)
    run_passes(item, REFERENCE_PASSES, ConvertOptions(strict=True))
    assert all(f.path is None for f in item.files)
    assert any(f.kind == "vocab" and len(item.sample_keys[k]) > 0 for k, f in enumerate(item.files))
    assert list(tmp_path.iterdir()) == []


def test_static_tables_become_vocabularies(zoo: Zoo, tmp_path: Path) -> None:
    item, reports = reference(zoo("e_vocab_file"), tmp_path)
    assert not ops(item) & {"HashTableV2", "LookupTableFindV2", "InitializeTableFromTextFileV2"}
    assert {f.kind for f in item.files} == {"table", "vocab"}
    vocabulary = next(f for f in item.files if f.kind == "vocab")
    keys = _native.vocab_sample_keys(vocabulary.path, 3)
    assert _native.vocab_find(vocabulary.path, keys).min() >= 0
    assert report_of("externalise_vocabularies", reports).fired >= 1


def test_mutable_tables_stay_and_are_named(zoo: Zoo, tmp_path: Path) -> None:
    item, reports = reference(zoo("m_mutable_table"), tmp_path)
    (state,) = item.mutable_state
    assert (state.kind, len(state.keys)) == ("table", 2)
    assert "stays in each session" in report_of("externalise_vocabularies", reports).refused[0].reason


def test_written_variables_stay_and_are_named(tmp_path: Path) -> None:
    import tensorflow as tf

    class Counter(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = tf.Variable(3, dtype=tf.int64)
            self.bias = tf.Variable([1.0, 2.0])

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
        def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"calls": self.calls.assign_add(1), "y": x + self.bias}

    module = Counter()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    model = BuiltModel(tmp_path / "model", {"x": np.zeros((1, 2), np.float32)}, {})
    item, reports = reference(model, tmp_path)
    (state,) = item.mutable_state
    assert "AssignAddVariableOp" in state.reason
    assert [r.reason for r in reports[1].refused] == [f"stays a variable: {state.reason}"]
    got = outputs(item, model, tmp_path / "state")
    assert int(got["calls"]) == 4
    np.testing.assert_array_equal(got["y"], [[1.0, 2.0]])


def test_control_flow_reads_the_shared_tables(zoo: Zoo, tmp_path: Path) -> None:
    item, _ = reference(zoo("m_control_flow"), tmp_path)
    assert item.mutable_state == []
    bodies = [n.op for f in item.graph_def.library.function for n in f.node_def]
    assert "GatherV2" in bodies
    assert not {"ResourceGather", "ReadVariableOp"} & set(bodies)


@pytest.mark.parametrize(("name", "strategy"), [("h_part_div_ref", "div"), ("h_part_mod_res", "mod")])
def test_parts_merge_in_the_order_of_the_whole(zoo: Zoo, tmp_path: Path, name: str, strategy: str) -> None:
    item, _ = reference(zoo(name), tmp_path)
    group = max(item.partitions, key=lambda g: len(g.nodes))
    files = [item.files[item.tables[n]] for n in group.nodes]
    index = merge_tables(item, group.nodes, strategy)
    assert merge_tables(item, group.nodes, strategy) == index

    def rows(path: Path | None, shape: tuple[int, ...]) -> np.ndarray:
        assert path is not None
        return np.fromfile(path, np.float32, int(np.prod(shape))).reshape(shape)

    parts = [rows(f.path, f.shape) for f in files]
    whole = rows(item.files[index].path, item.files[index].shape)
    if strategy == "div":
        np.testing.assert_array_equal(whole, np.concatenate(parts))
    else:
        for k, part in enumerate(parts):
            np.testing.assert_array_equal(whole[k :: len(parts)], part)


def test_control_edges_of_effects_stay(tmp_path: Path) -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def checked(x: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.debugging.assert_less(x, 10.0, "too large")
        return {"y": tf.identity(x) * 2.0}

    module = tf.Module()
    module.checked = checked
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=checked)
    model = BuiltModel(tmp_path / "model", {"x": np.float32([1, 2])}, {})
    item, _ = reference(model, tmp_path)
    assert {"Assert", "If"} & ops(item)
    outputs(item.copy(), model, tmp_path)
    bad = BuiltModel(tmp_path / "model", {"x": np.float32([99])}, {})
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        outputs(item, bad, tmp_path)


def test_passes_run_twice_change_nothing(zoo: Zoo, tmp_path: Path) -> None:
    item, _ = reference(zoo("e_keras_lookup"), tmp_path)
    before = item.graph_def.SerializeToString(deterministic=True)
    assert externalise_tables(item, ConvertOptions()).fired == 0
    normalise(item, ConvertOptions())
    assert item.graph_def.SerializeToString(deterministic=True) == before


def test_views_agree_with_the_tables(zoo: Zoo, tmp_path: Path) -> None:
    item, _ = reference(zoo("o_shared_ranked"), tmp_path)
    view = GraphView(item.graph_def)
    for node, index in item.tables.items():
        assert view.node(node).attr["index"].i == index
