"""The pass list and its driver: a failed pass leaves no trace, strict mode raises, options are checked."""

import pytest

from graph_opt import pipeline
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import Pass, PassOutcome, Refused
from tests.graph_opt.test_verify import item
from tfctr.bundle.naming import RULE_ATTR
from tfctr.errors import StrictRefusal, UsageError


def rename(broken: GraphItem, options: ConvertOptions) -> PassOutcome:
    broken.graph_def.node[0].name = "renamed"
    broken.packed["s"] = "x"
    return PassOutcome(fired=1)


def explode(broken: GraphItem, options: ConvertOptions) -> PassOutcome:
    del broken.graph_def.node[:]
    raise RuntimeError("boom")


def refuse(whole: GraphItem, options: ConvertOptions) -> PassOutcome:
    return PassOutcome(refused=(Refused(what="lookup a", reason="differs", proof_failed=True),))


def one(run, **fields) -> Pass:  # type: ignore[no-untyped-def]
    return Pass(name="it", run=run, does="a test", **fields)


@pytest.mark.parametrize(("run", "error"), [(rename, "BrokenGraph"), (explode, "RuntimeError: boom")])
def test_a_failed_pass_is_undone_and_reported(run, error: str) -> None:  # type: ignore[no-untyped-def]
    whole = item()
    before = whole.graph_def.SerializeToString(deterministic=True)
    (report,) = pipeline.run_passes(whole, [one(run)], ConvertOptions())
    assert report.status == "failed"
    assert error in report.error
    assert whole.graph_def.SerializeToString(deterministic=True) == before
    assert whole.packed == {}


@pytest.mark.parametrize("run", [rename, explode])
def test_strict_raises(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StrictRefusal, match="pass it failed"):
        pipeline.run_passes(item(), [one(run)], ConvertOptions(strict=True))


def test_strict_raises_for_a_failed_proof_only() -> None:
    (report,) = pipeline.run_passes(item(), [one(refuse)], ConvertOptions())
    assert report.status == "ok"
    with pytest.raises(StrictRefusal, match="it: lookup a: differs"):
        pipeline.run_passes(item(), [one(refuse)], ConvertOptions(strict=True))


def test_a_pass_that_a_bundle_needs_is_not_forgiven() -> None:
    with pytest.raises(RuntimeError, match="boom"):
        pipeline.run_passes(item(), [one(explode, can_disable=False)], ConvertOptions())


def test_nodes_say_which_pass_made_them() -> None:
    """Unless the pass has said it better; a copy of the model's own node in another form stays the model's."""

    def add(whole: GraphItem, options: ConvertOptions) -> PassOutcome:
        model = whole.graph_def.node[0]
        whole.graph_def.node.add(name="made", op="NoOp")
        whole.graph_def.node.add(name="by_rule", op="NoOp").attr[RULE_ATTR].s = b"it:a rule"
        copy = whole.graph_def.node.add()
        copy.CopyFrom(model)
        copy.name = f"form/side/{model.name}"
        return PassOutcome(fired=3)

    whole = item()
    model = whole.graph_def.node[0].name
    pipeline.run_passes(whole, [one(add)], ConvertOptions())
    marks = {n.name: n.attr[RULE_ATTR].s for n in whole.graph_def.node if RULE_ATTR in n.attr}
    assert marks == {"made": b"it", "by_rule": b"it:a rule"}
    assert f"form/side/{model}" in {n.name for n in whole.graph_def.node}


def test_disabled_passes_do_not_run() -> None:
    (report,) = pipeline.run_passes(item(), [one(explode)], ConvertOptions(disable=("it",)))
    assert report.status == "disabled"


def test_names_are_checked() -> None:
    with pytest.raises(UsageError, match="no pass 'x'; the passes are: prune_training, .*fuse_lookups"):
        pipeline.check_names(ConvertOptions(disable=("x",)))
    with pytest.raises(UsageError, match="'externalise_tables' can't be disabled"):
        pipeline.check_names(ConvertOptions(disable=("externalise_tables",)))
    mine = one(refuse)
    pipeline.check_names(ConvertOptions(disable=("it",), extra_passes=(mine,)))
    order = [p.name for p in pipeline.all_passes(ConvertOptions(extra_passes=(mine,)))]
    assert order.index("fuse_lookups") < order.index("it") < order.index("pack_inputs")


def test_dense_passes_run_between_the_forms_and_the_last_passes() -> None:
    """Each form has its engine before files are numbered anew and forms are packed; a refresh runs these again."""
    options = ConvertOptions(dense_passes=(one(refuse),))
    order = [p.name for p in pipeline.all_passes(options)]
    assert order.index("split_user_item") < order.index("merge_transfers") < order.index("it")
    assert order[order.index("it") :] == ["it", "drop_unused_files", "pack_inputs"]
    assert [p.name for p in pipeline.last_passes(options)] == order[order.index("it") :]
    assert pipeline.all_passes(ConvertOptions()) == pipeline.DEFAULT_PASSES


def test_every_pass_says_what_and_why() -> None:
    for each in pipeline.DEFAULT_PASSES:
        assert each.does
        assert each.order_reason
