"""What can be asked for, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from export.dense.options import DenseOptions, check_dense, valid_pairs
from export.fp16.convert import DEFAULT_CLAMP
from export.fp16.islands import HALF_MAX
from tfctr.errors import UsageError


def test_constants_are_those_of_fp16() -> None:
    assert DenseOptions().clamp == DEFAULT_CLAMP
    with pytest.raises(UsageError, match=f"up to {HALF_MAX:g}"):
        check_dense(DenseOptions(clamp=HALF_MAX * 2))


@pytest.mark.parametrize(
    ("provider", "precision"),
    [("openvino", "fp16"), ("tensorflow", "fp16"), ("tensorflow", "bf16"), ("tensorrt", "bf16")],
)
def test_pairs_that_there_are_not(provider: str, precision: str) -> None:
    with pytest.raises(UsageError, match="no such pair; there are tensorflow with fp32; openvino with fp32, bf16; ten"):
        check_dense(DenseOptions(dense=provider, precision=precision))


@pytest.mark.parametrize(
    ("provider", "precision", "want"),
    [
        ("openvino", None, "fp32"), ("openvino", "bf16", "bf16"), ("tensorrt", None, "fp16"),
        ("tensorrt", "fp32", "fp32"), ("tensorflow", None, "fp32"),
    ],
)  # fmt: skip
def test_pairs_that_there_are(provider: str, precision: str | None, want: str) -> None:
    options = DenseOptions(dense=provider, precision=precision)
    check_dense(options)
    assert options.precision_for(provider) == want
    assert f"{provider} with" in valid_pairs()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dense": "onnx"}, "--dense onnx: expected auto, tensorflow, openvino, tensorrt"),
        ({"precision": "int8"}, "--precision int8: expected bf16, fp16, fp32"),
        ({"clamp": 0.0}, "--clamp 0: expected a number above 0"),
        ({"dense": "openvino", "clamp": 5.0}, "--clamp 5: embeddings are clipped in fp16 only, which is for"),
        ({"dense": "tensorrt", "precision": "fp32", "clamp": 5.0}, "--clamp 5: embeddings are clipped in fp16 only"),
        ({"max_dp": -1.0}, "--max-dp -1.0: expected a number of 0 or more"),
        ({"threads": 0}, "threads 0"),
        ({"buckets": (0,)}, "batch size 0"),
        ({"cache_limit_bytes": 0}, "limit of the compile cache is 0"),
        ({"dense": "openvino", "targets": ("sm80",)}, "--target sm80: plans are built with --dense tensorrt only"),
        ({"dense": "auto", "targets": ("sm89", "h100")}, "unknown target 'h100': --target expects GPU generations"),
        ({"cache_dir": ""}, "--cache-dir '': expected a folder, or off"),
        ({"dense": "tensorflow", "required": True}, "--dense-required: contradicts --dense tensorflow"),
        ({"dense": "tensorrt", "targets": ("sm33",)}, "unknown target 'sm33': tensorrt_rtx .* builds for sm75, sm80"),
        ({"dense": "tensorrt", "targets": ("sm90",)}, "sm90 needs the package tensorrt, on a machine with such a GPU"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_dense(DenseOptions(**fields))


def test_clamps_where_fp16_may_be() -> None:
    for dense, precision in (("auto", None), ("tensorrt", None), ("tensorrt", "fp16"), ("auto", "fp16")):
        check_dense(DenseOptions(dense=dense, precision=precision, clamp=5.0))
    check_dense(DenseOptions(dense="openvino", clamp=None))  # off is what it is anyway


def test_limits_are_the_engines() -> None:
    assert DenseOptions().limits("bf16").max_dp == 2e-2
    assert DenseOptions(max_dp=1e-3).limits("fp16").max_dp == 1e-3


def test_providers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.dense.options.why_not", lambda provider: "the package openvino is not installed")
    with pytest.raises(UsageError, match="--dense openvino: the package openvino is not installed"):
        check_dense(DenseOptions(dense="openvino"))
    check_dense(DenseOptions())  # auto looks for itself
