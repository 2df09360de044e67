"""FP16 of a trained tower: the AUC on MovieLens-100k's test rows stays."""

from examples.models.movielens_tower import trained_tower
from export.fp16.inputs import embedding_inputs
from export.fp16.narrow import NarrowOptions, narrow_tower
from export.onnx.exporter import to_onnx


def test_auc_of_a_trained_tower(shared_data):
    tower, feeds, labels = trained_tower(shared_data / "ml-100k")
    options = NarrowOptions(clamped=embedding_inputs(tower))
    found = narrow_tower(to_onnx(tower).model, feeds, options, labels=labels)
    assert found.precision == "fp16" and len(found.steps) == 1
    verdict = found.gate.outputs[0]
    assert verdict.auc_reference > 0.68  # it has learnt something
    assert abs(verdict.auc_delta) <= 1e-4
    assert found.gate.worst_dp <= 4e-3
