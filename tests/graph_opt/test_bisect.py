"""Bisection: wrong, slow and raising passes are found, narrowed to the lookup, and written down as a small model."""

import contextlib
import dataclasses
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from examples.models import DLRM, USER_FEATURES, WideAndDeep, requests
from graph_opt import pipeline
from graph_opt.bisect import narrow
from graph_opt.bisect.speed import paired_ratio
from graph_opt.candidates import Proof
from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.passes import fuse_lookups
from graph_opt.prove import prove_all
from graph_opt.view import GraphView
from tests.models.fixtures import Zoo
from tfctr.errors import InputError, UsageError
from tfctr.passes import ConvertOptions, GraphItem, Pass, PassOutcome

FUSED = "TfctrFusedLookup"


def shift_bias(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Wrong: adds 0.01 to the first bias."""
    view = GraphView(item.graph_def)
    node = next(n for n in view if n.op in ("BiasAdd", "AddV2") and view.producer(view.inputs(n)[1]).op == "Const")
    constant = view.producer(view.inputs(node)[1]).attr["value"].tensor
    constant.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(constant) + np.float32(0.01)))
    return PassOutcome(fired=1)


def sum_instead_of_mean(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Wrong: patches the proven spec of one lookup (in the node and in the group that packing copies)."""
    view = GraphView(item.graph_def)
    for number, group in enumerate(item.groups):
        for k, (spec, place) in enumerate(group.lookups):
            if spec.name == "f4" and spec.combiner == "mean":
                lookups = list(group.lookups)
                lookups[k] = (dataclasses.replace(spec, combiner="sum"), place)
                item.groups[number] = dataclasses.replace(group, lookups=tuple(lookups))
                node = view.node(group.node).attr["spec"]
                lines = node.s.decode().splitlines()
                lines = [re.sub("combiner=mean", "combiner=sum", x) if "name=f4" in x else x for x in lines]
                node.s = ("\n".join(lines) + "\n").encode()
                return PassOutcome(fired=1)
    return PassOutcome()


def two_rewrites(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Right for all constants but one; names them, so that they can be told apart."""
    view = GraphView(item.graph_def)
    names = sorted(n.name for n in view if n.op in ("BiasAdd", "AddV2") and view.producer(n.input[1]).op == "Const")
    for name in names:
        if options.wants(name) and name == names[-1]:
            constant = view.producer(view.inputs(name)[1]).attr["value"].tensor
            constant.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(constant) * np.float32(1.5) + np.float32(0.1)))
    return PassOutcome(fired=len(names), rewrites=tuple(n for n in names if options.wants(n)))


def refuse_everything(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Wrong: the call raises."""
    view = GraphView(item.graph_def)
    output = item.signatures["serving_default"].outputs["score"]
    node = view.node(output.name)
    with tf.Graph().as_default() as graph:
        checked = tf.debugging.check_numerics(tf.constant(float("nan")), "broken on purpose")
        tf.identity(checked, "wrong")
    for made in graph.as_graph_def().node:
        view.add(made)
    view.set_inputs(node.name, [*node.input, "^wrong"])
    return PassOutcome(fired=1)


def slow(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Right, but the output waits for some matrix products."""
    view = GraphView(item.graph_def)
    with tf.Graph().as_default() as graph:
        value = tf.random.uniform([900, 900])  # a random op is never folded
        for k in range(3):
            value = tf.matmul(value, value, name=f"slow/product_{k}")
    for made in graph.as_graph_def().node:
        view.add(made)
    for name in item.optimise:
        for info in item.signatures[name].outputs.values():
            node = view.node(info.name)
            view.set_inputs(node.name, [*node.input, f"^{value.op.name}"])
    return PassOutcome(fired=1)


def extra(run: Any, name: str) -> Pass:
    return Pass(name=name, run=run, does="for a test")


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> Path:
    return zoo("a_safe_sparse").path


@pytest.fixture(scope="module")
def small(zoo: Zoo) -> Path:
    """One feature: for what is not about telling lookups apart."""
    return zoo("a_safe_sparse_one").path


def inputs_of(model: Path) -> str:
    return str(model / "inputs.npz")


def run_script(folder: Path, *, alone: bool = False) -> tuple[int, str]:
    """Exit code and text of ``run.py``; alone: in a process of its own, as a user runs it."""
    if alone:
        done = subprocess.run([sys.executable, str(folder / "run.py")], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr[-2000:]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = runpy.run_path(str(folder / "run.py"))["main"]()
    return code, told.getvalue()


def test_nothing_differs(small: Path, tmp_path: Path) -> None:
    found = tfctr.bisect(small, inputs_of(small), out=tmp_path / "repro")
    assert not found.found and found.culprit == "" and found.reproduction is None
    assert [s.name for s in found.steps][-1] == "pack_inputs"
    assert {s.status for s in found.steps} <= {"equal", "skipped"}
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_pass_is_named_with_its_tensor_and_one_row(model: Path, tmp_path: Path) -> None:
    given = [extra(shift_bias, "shift_bias")]
    found = tfctr.bisect(model, inputs_of(model), extra_passes=given, out=tmp_path / "repro")
    assert found.culprit == "shift_bias" and found.tensor.endswith("BiasAdd:0")
    assert found.difference is not None and found.difference.output == "score"
    assert len(found.rows) == 1 and found.difference.row == found.rows[0]
    assert found.steps[-1].status == "differs"
    code, told = run_script(tmp_path / "repro", alone=True)
    assert code == 3 and "bundle as a SavedModel: result DIFFERS, largest |difference| 0.01" in told, told
    assert "result DIFFERS" in told.split("bundle as served:")[1]


def test_a_wrong_spec_leads_to_its_lookup_and_a_model_of_it_alone(model: Path, tmp_path: Path) -> None:
    given = [extra(sum_instead_of_mean, "patched")]
    found = tfctr.bisect(model, inputs_of(model), extra_passes=given, out=tmp_path / "repro")
    assert (found.culprit, found.lookups) == ("patched", ("f4",))
    assert found.tensor.endswith("tfctr/lookup_0:0")
    small = tmp_path / "repro"
    with np.load(small / "inputs.npz") as kept:
        assert {name.partition("_")[0] for name in kept} == {"f4"}
    checkpoint = str(small / "model" / "variables" / "variables")
    ((table, _),) = tf.train.list_variables(checkpoint)
    values = tf.train.load_variable(checkpoint, table)
    with np.load(small / "inputs.npz") as kept:
        reached = np.unique(kept["f4_values"])
    assert set(np.flatnonzero(values.any(axis=1))) <= set(reached)  # rows that no input reaches are zeros
    told = json.loads((small / "findings.json").read_text())
    assert told["lookups"] == ["f4"] and told["reproduces"]["what"] == "the lookup 'f4'"
    assert "`f4`" in (small / "README.md").read_text()
    code, said = run_script(small)
    assert code == 3 and "bundle as served: result DIFFERS" in said, said


def test_a_lookup_fused_wrongly_is_found_among_the_others(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusting(item: GraphItem, candidates: Any) -> list[Proof]:
        proofs = prove_all(item, candidates)
        return [
            dataclasses.replace(p, spec=dataclasses.replace(p.spec, combiner="sum"))
            if p.spec is not None and p.spec.name == "f4"
            else p
            for p in proofs
        ]

    monkeypatch.setattr(fuse_lookups, "prove_all", trusting)
    found = tfctr.bisect(model, inputs_of(model), out=tmp_path / "repro")
    assert (found.culprit, found.lookups) == ("fuse_lookups", ("f4",))
    assert len(found.rewrites) == 1
    assert found.reproduction == tmp_path / "repro"
    assert (tmp_path / "repro" / "bundle" / "saved_model.pb").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["b_ragged_w", "e_vocab_file", "f_densefeatures_example", "h_part_mod_res", "i_deepctr_din", "m_mutable_table"],
)
def test_a_lookup_of_any_kind_is_cut_out(name: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged, vocabularies from files, serialized Examples, partitioned tables, TF1 models, mutable state beside it."""
    changed: list[str] = []

    def wrong(spec: LookupSpec) -> LookupSpec:
        changed.append(spec.name)
        if spec.combiner == "none":
            return dataclasses.replace(spec, steps=(*spec.steps, Step("add", ("1",))))
        return dataclasses.replace(spec, combiner="mean" if spec.combiner == "sum" else "sum")

    def trusting(item: GraphItem, candidates: Any) -> list[Proof]:
        proofs = prove_all(item, candidates)
        first = next((p.spec.name for p in proofs if p.spec is not None), "")
        target = changed[0] if changed else first
        return [
            dataclasses.replace(p, spec=wrong(p.spec)) if p.spec is not None and p.spec.name == target else p
            for p in proofs
        ]

    monkeypatch.setattr(fuse_lookups, "prove_all", trusting)
    model = zoo(name).path
    found = tfctr.bisect(model, inputs_of(model), out=tmp_path / "repro")
    assert (found.culprit, found.lookups) == ("fuse_lookups", (changed[0],))
    assert json.loads((tmp_path / "repro" / "findings.json").read_text())["reproduces"]["what"].startswith("the lookup")
    assert run_script(tmp_path / "repro")[0] == 3


def test_one_of_several_rewrites_is_named(model: Path) -> None:
    found = tfctr.bisect(model, inputs_of(model), extra_passes=[extra(two_rewrites, "two_rewrites")])
    assert found.culprit == "two_rewrites"
    assert len(found.rewrites) == 1 and "Add" in found.rewrites[0]


def test_an_error_on_one_side_is_a_difference(small: Path, tmp_path: Path) -> None:
    given = [extra(refuse_everything, "refuse")]
    found = tfctr.bisect(small, inputs_of(small), extra_passes=given, out=tmp_path / "repro")
    assert found.culprit == "refuse" and found.difference is not None
    assert "it raises: " in found.difference.reason and "broken on purpose" in found.difference.reason
    code, told = run_script(tmp_path / "repro")
    assert code == 3 and "broken on purpose" in told


def test_a_split_that_gives_users_the_wrong_rows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain form is right, the split form is not: only that form tells."""
    DLRM(vocabulary=50, width=4).save(str(tmp_path / "model"))
    number = next(k for k, p in enumerate(pipeline.FORM_PASSES) if p.name == "split_user_item")
    right = pipeline.FORM_PASSES[number]

    def wrong(item: GraphItem, options: ConvertOptions) -> PassOutcome:
        outcome = right.run(item, options)
        form = item.split["serving_default"]
        view = GraphView(item.graph_def)
        name = item.signatures[form.signature].inputs[form.row_to_user].name
        with tf.Graph().as_default() as graph:
            source = tf.compat.v1.placeholder(tf.int64, [None], name.split(":")[0])
            tf.zeros_like(source, name="nobody_else")
        for node in graph.as_graph_def().node:
            if node.name != source.op.name:
                view.add(node)
        view.replace_tensor(name, "nobody_else:0", keep=["nobody_else"])
        return outcome

    passes = list(pipeline.FORM_PASSES)
    passes[number] = dataclasses.replace(right, run=wrong)
    monkeypatch.setattr(pipeline, "FORM_PASSES", tuple(passes))
    inputs = {name: np.asarray(value) for name, value in requests("dlrm", 12, vocabulary=50).items()}
    found = tfctr.bisect(tmp_path / "model", inputs, user_features=USER_FEATURES["dlrm"], out=tmp_path / "repro")
    assert found.culprit == "split_user_item" and found.difference is not None
    assert found.difference.form == "split"
    assert len(found.rows) == 2  # one row has one user, whichever
    with np.load(tmp_path / "repro" / "request.npz") as request:
        assert "row_to_user" in request
    code, told = run_script(tmp_path / "repro")
    assert code == 3 and "bundle as served:" in told and "DIFFERS" in told.split("bundle as served:")[1], told


def test_smaller_tables_are_judged_by_the_gate(tmp_path: Path) -> None:
    WideAndDeep(vocabulary=3000, width=8).save(str(tmp_path / "model"))
    found = tfctr.bisect(tmp_path / "model", table_dtype="fp16")
    step = next(s for s in found.steps if s.name == "compress_tables")
    assert step.fired and step.drift > 1e-5 and not found.found
    strict = tfctr.bisect(tmp_path / "model", table_dtype="fp16", tolerance=1e-6)
    assert strict.culprit == "compress_tables" and strict.rewrites and strict.lookups


def test_tolerance(small: Path) -> None:
    given = [extra(shift_bias, "shift_bias")]
    assert not tfctr.bisect(small, inputs_of(small), extra_passes=given, tolerance=0.5).found
    assert tfctr.bisect(small, inputs_of(small), extra_passes=given, tolerance=1e-4).found


def test_a_pass_that_fails_is_undone_and_told(small: Path) -> None:
    def fails(item: GraphItem, options: ConvertOptions) -> PassOutcome:
        raise ValueError("no luck")

    found = tfctr.bisect(small, inputs_of(small), extra_passes=[extra(fails, "fails")])
    assert not found.found
    step = next(s for s in found.steps if s.name == "fails")
    assert step.status == "failed" and "no luck" in step.note


def test_a_slow_pass_is_found(small: Path) -> None:
    found = tfctr.bisect(small, inputs_of(small), what="speed", rounds=15, extra_passes=[extra(slow, "slow")])
    assert (found.found, found.culprit) == (True, "slow")
    step = next(s for s in found.steps if s.name == "slow")
    assert step.status == "slower" and step.ratio is not None and step.low is not None
    assert step.ratio > step.low > 1.0


def test_inputs_that_the_original_refuses(model: Path) -> None:
    with np.load(inputs_of(model)) as file:
        arrays = dict(file)
    with pytest.raises(InputError, match="refuses the inputs"):
        tfctr.bisect(model, {**arrays, "f0_values": arrays["f0_values"] + 10_000_000})
    with pytest.raises(InputError, match="has no input 'odd'"):
        tfctr.bisect(model, {**arrays, "odd": np.zeros(3)})
    del arrays["f0_values"]
    with pytest.raises(InputError, match="needs the input 'f0_values'"):
        tfctr.bisect(model, arrays)


def test_a_model_that_draws_random_numbers_can_not_be_compared(tmp_path: Path) -> None:
    class Random(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def score(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            # Not tf.random.uniform, which takes a fixed seed where an earlier test has set one.
            drawn = tf.raw_ops.RandomUniform(shape=tf.shape(x), dtype=tf.float32, seed=0, seed2=0)
            return {"score": x + drawn}

    module = Random()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.score)
    with pytest.raises(UsageError, match="other outputs when it runs again"):
        tfctr.bisect(tmp_path / "model")


def test_arguments(small: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(UsageError, match="new or empty folder"):
        tfctr.bisect(small, out=tmp_path / "full")
    with pytest.raises(UsageError, match="expected outputs or speed"):
        tfctr.bisect(small, what="colour")
    with pytest.raises(UsageError, match="no signature 'nope'"):
        tfctr.bisect(small, signature="nope")
    with pytest.raises(UsageError, match="no pass 'nope'"):
        tfctr.bisect(small, disable=("nope",))


def test_smallest_finds_single_and_joint_culprits() -> None:
    asked = 0

    def shows(wanted: set[int]) -> Any:
        def check(items: list[int]) -> bool:
            nonlocal asked
            asked += 1
            return wanted <= set(items)

        return check

    for wanted in ({17}, {0}, {63}, {3, 40}, {1, 2, 3}):
        assert set(narrow.smallest(list(range(64)), shows(wanted))) == wanted
    asked = 0
    narrow.smallest(list(range(64)), shows({17}))
    assert asked <= 12
    assert narrow.smallest([5], shows({5})) == [5]


def test_paired_ratio_has_an_interval_around_the_median() -> None:
    random = np.random.default_rng(0)
    before = random.uniform(1.0, 1.2, 60)
    same, double = paired_ratio(before * random.uniform(0.97, 1.03, 60), before), paired_ratio(before * 2, before)
    assert same.low <= same.median <= same.high and not same.slower(0.01)
    assert double.median == pytest.approx(2.0) and double.slower(0.5) and not double.slower(1.5)
    assert paired_ratio(before / 2, before).faster(0.05)
