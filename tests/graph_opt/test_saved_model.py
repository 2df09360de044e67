"""Finding and loading SavedModels: what a path may be, and what is said where it is something else."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from graph_opt.saved_model import find, inline, load
from tests.models.fixtures import Zoo
from tfctr.errors import UsageError


def empty(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


def with_graphs(folder: Path, *tags: tuple[str, ...]) -> Path:
    saved = saved_model_pb2.SavedModel()
    for some in tags:
        saved.meta_graphs.add().meta_info_def.tags.extend(some)
    empty(folder)
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return folder


def test_the_highest_version_is_taken_and_said(tmp_path: Path) -> None:
    for version in ("1", "9", "10"):
        empty(tmp_path / version)
    (tmp_path / "99").mkdir()  # no model in it
    empty(tmp_path / ".11")
    found, note = find(tmp_path)
    assert found == tmp_path / "10"
    assert "taking the highest (of 3)" in note
    assert find(tmp_path / "9") == (tmp_path / "9", "")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.keras", r"model\.export"),
        ("m.h5", r"model\.export"),
        ("m.pb", "frozen graph"),
        ("m.onnx", "ONNX"),
        ("m.txt", "a SavedModel is a folder"),
        ("saved_model.pb", "give the folder that holds it"),
    ],
)
def test_files_say_what_to_do_instead(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=advice):
        find(tmp_path / name)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        find(tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no saved_model.pb"):
        find(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    empty(tmp_path / "m")
    (tmp_path / "m" / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(UsageError, match=r"saved_model.pb can't be read"):
        load(tmp_path / "m")


def test_tags(tmp_path: Path) -> None:
    folder = with_graphs(tmp_path / "two", ("serve",), ("serve", "gpu"))
    with pytest.raises(UsageError, match="2 MetaGraphs: choose one with --tags. Their tags: serve; gpu,serve"):
        load(folder)
    assert load(folder, ["gpu", "serve"]).tags == ("serve", "gpu")
    with pytest.raises(UsageError, match="no MetaGraph tagged train. Tags that exist: serve; gpu,serve"):
        load(folder, ["train"])
    with pytest.raises(UsageError, match="no MetaGraph tagged serve. Tags that exist: train"):
        load(with_graphs(tmp_path / "one", ("train",)))


def test_a_model_without_signatures(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no signature"):
        inline(load(with_graphs(tmp_path / "m", ("serve",))))


def test_signatures_are_listed(zoo: Zoo) -> None:
    source = load(zoo("o_two_signatures").path)
    with pytest.raises(UsageError, match="no signature 'other'; it has: serving_default, user_vector"):
        inline(source, ["other"])
    item = inline(source, ["user_vector"])
    assert item.optimise == ("user_vector",)
    assert set(item.signatures) == {"serving_default", "user_vector"}


def test_unknown_ops_are_named(zoo: Zoo, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(zoo("l_fused_offsets").path, folder)
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    saved.meta_graphs[0].graph_def.library.function[0].node_def.add(name="strange", op="MyOwnOp")
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(UsageError, match=r"not registered: MyOwnOp; .*--op-library"):
        inline(load(folder))


def test_variables_are_mapped_through_the_restore_op(zoo: Zoo) -> None:
    item = inline(load(zoo("c_keras_onehot").path))
    tables = [ref for name, ref in item.variables.items() if "embedding" in ref.key or "embeddings" in name]
    assert tables
    assert all(ref.key.endswith("/.ATTRIBUTES/VARIABLE_VALUE") for ref in item.variables.values())
    parts = inline(load(zoo("h_part_div_ref").path)).variables
    slices = sorted(ref.slice for ref in parts.values() if ref.slice)
    assert slices, parts
    mutable: Any = inline(load(zoo("m_mutable_table").path)).restored_tables
    assert len(mutable) == 1


def test_control_flow_stays_functional(zoo: Zoo) -> None:
    item = inline(load(zoo("m_control_flow").path))
    ops = {node.op for node in item.graph_def.node}
    assert ops & {"If", "StatelessIf"}
    assert ops & {"While", "StatelessWhile"}
    assert not ops & {"Switch", "Merge", "Enter", "PartitionedCall"}
    assert not any("_GrapplerSpecializedFunc" in f.attr for f in item.graph_def.library.function)
    assert not any("_class" in node.attr for node in item.graph_def.node)
