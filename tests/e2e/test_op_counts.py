"""How many operations a converted model runs: a constant number per group, whatever the number of features."""

from __future__ import annotations

from pathlib import Path

import tfctr
from tests.models.fixtures import Zoo

# What TensorFlow's executor adds to every run, and constants.
_NO_WORK = ("Const", "_Arg", "_Retval", "NoOp")


def executed(zoo: Zoo, folder: Path, name: str) -> list[str]:
    """Op types that one packed run executes."""
    model = zoo(name)
    tfctr.convert(model.path, folder / name, strict=True)
    with tfctr.ServingSession(folder / name) as session:
        _, metadata = session.run_traced(model.inputs)
    labels = [node.timeline_label for device in metadata.step_stats.dev_stats for node in device.node_stats]
    ops = [label.split(" = ", 1)[-1].split("(", 1)[0].strip() for label in labels]
    return sorted(op for op in ops if op not in _NO_WORK)


def test_twelve_features_run_as_many_operations_as_one(zoo: Zoo, tmp_path: Path) -> None:
    twelve, one = (executed(zoo, tmp_path, name) for name in ("a_safe_sparse", "a_safe_sparse_one"))
    assert twelve == one
    assert [op for op in twelve if op.startswith("Tfctr")] == ["TfctrFusedLookup", "TfctrStore"]
    assert len(twelve) <= 3 + 3  # the lookups; two products and the identity that names the output
