"""What a refresh takes over from the bundle before: provider, precision, variants, islands and targets of each form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from export.dense.options import OPENVINO, TENSORFLOW, TENSORRT, DenseOptions
from tfctr.engines import providers

_DEFAULT_THREADS = 1
_LIMITS = ("max_dp", "max_bias", "max_auc_delta")


def entries_of(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """form -> its ``dense`` entry, of all forms that a manifest has one for."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, info in manifest["signatures"].items():
        split = info.get("split") or {}
        for form, entry in ((name, info.get("dense")), (split.get("signature"), split.get("dense"))):
            if form and entry:
                found[form] = entry
    return found


def reused(options: DenseOptions, form: str) -> DenseOptions:
    """``options`` with what ``options.reuse`` says of ``form``; as they are where it says nothing."""
    entry = (options.reuse or {}).get(form)
    if entry is None:
        return options
    provider = str(entry["provider"])
    if provider == OPENVINO and providers.why_not(OPENVINO):
        provider = TENSORFLOW  # it does not run here, so it can't be judged: TensorFlow serves the new weights
    fp16 = provider == TENSORRT and entry["precision"] == "fp16"
    limits = (entry.get("accuracy") or {}).get("limits") or {}
    return dataclasses.replace(
        options,
        dense=provider,
        precision=str(entry["precision"]) if provider != TENSORFLOW else "fp32",
        clamp=entry["clamp"] if fp16 else options.clamp,
        targets=tuple(entry["targets"]) if provider == TENSORRT else (),
        threads=int(entry.get("threads", _DEFAULT_THREADS)),
        islands={form: {one["node"]: one.get("reason", "as before") for one in entry["islands"]}},
        buckets=tuple(int(one["rows"]) for one in entry["buckets"]),
        **{name: limits[name] for name in _LIMITS if name in limits and getattr(options, name) is None},
    )


def reason_to_stay(options: DenseOptions, form: str) -> str:
    """Why the tower of ``form``, for which ``reused`` gave "tensorflow", stays there."""
    entry = (options.reuse or {}).get(form) or {}
    if entry.get("provider") == OPENVINO and (reason := providers.why_not(OPENVINO)):
        return f"openvino, which ran it before, does not run here, so new weights can't be judged: {reason}"
    return str(entry.get("reason") or "as in the bundle before")


def tuned_before(options: DenseOptions, form: str, precision: str) -> dict[str, Any] | None:
    """The variants and options of OpenVINO that were found to pay, in the form of ``Tuned``; None where there are none
    for this precision.
    """
    entry: Mapping[str, Any] | None = (options.reuse or {}).get(form)
    if entry is None or entry["provider"] != OPENVINO or entry["precision"] != precision:
        return None
    return {
        "buckets": [int(one["rows"]) for one in entry["buckets"]],
        "options": dict(entry["options"]),
        "timing": {"note": "variants as in the bundle before; not measured again"},
        "versus_tensorflow": dict(entry["versus_tensorflow"]),
    }
