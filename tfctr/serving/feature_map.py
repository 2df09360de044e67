"""From logical names to graph tensors: the description of a signature that the C++ packer is built from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfctr.errors import UsageError
from tfctr.serving.signature_info import Feature, Output, SignatureInfo, numpy_dtype

_ROLES = {"sparse": {"values", "indices", "dense_shape"}, "ragged": {"values", "row_splits"}}


def with_features(info: SignatureInfo, given: Iterable[Mapping[str, Any]]) -> tuple[Feature, ...]:
    """Features of a signature: the given ones, and those of the SignatureDef that share no input with them.

    given: {"name", "kind": "dense" | "sparse" | "ragged", "parts": {role: input name}} as in a manifest; dense ones
    are skipped.

    Raises:
      UsageError: a part is no input of the signature, belongs to two features, is missing, or a name means two things.
    """
    names = {one.name for one in info.inputs}
    features: list[Feature] = []
    used: set[str] = set()
    for entry in given:
        if entry["kind"] not in _ROLES:
            continue
        feature = Feature(str(entry["name"]), str(entry["kind"]), dict(entry["parts"]))
        _check(feature, names, used)
        used |= set(feature.parts.values())
        features.append(feature)
    features += [f for f in info.features if not used & set(f.parts.values())]
    features.sort(key=lambda f: f.name)
    taken: set[str] = set()
    for feature in features:
        if feature.name in names - set(feature.parts.values()) or feature.name in taken:
            raise UsageError(f"feature {feature.name!r} has the name of another input or feature")
        taken.add(feature.name)
    return tuple(features)


def _check(feature: Feature, names: set[str], used: set[str]) -> None:
    missing = _ROLES[feature.kind] - set(feature.parts)
    if missing:
        raise UsageError(f"{feature.kind} feature {feature.name!r} has no part {', '.join(sorted(missing))}")
    for role, part in feature.parts.items():
        if part not in names:
            raise UsageError(f"feature {feature.name!r}: its {role} {part!r} is no input of the signature")
        if part in used:
            raise UsageError(f"feature {feature.name!r}: input {part!r} belongs to another feature already")


def describe(
    context: str,
    info: SignatureInfo,
    features: Iterable[Feature],
    packed: Mapping[str, str | None] | None,
    outputs: Iterable[Output],
    users: Mapping[str, Any] | None = None,
    like: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What ``_native.Predictor`` takes.

    context: starts every error message. packed: graph tensors of arena, shapes and strings (None without string
    inputs), or None where the inputs are fed one by one. outputs: those of the form that runs (packed or not).
    users: which inputs may come once per user, and the form that takes them so (``user_inputs.describe``). like: input
    -> the input whose values it goes with, one for one (weights of ids).
    """
    position = {one.name: k for k, one in enumerate(info.inputs)}
    return {
        "context": context,
        "parts": [
            {
                "name": one.name,
                "tensor": one.tensor,
                "dtype": tf.as_dtype(one.dtype).as_datatype_enum,
                "numpy": numpy_dtype(one.dtype),
                "shape": None if one.shape is None else list(one.shape),
                "like": position.get((like or {}).get(one.name, "")),
            }
            for one in info.inputs
        ],
        "features": [_feature(feature, position) for feature in features],
        "packed": None if packed is None else dict(packed),
        "outputs": describe_outputs(outputs),
        "users": None if users is None else dict(users),
    }


def describe_outputs(outputs: Iterable[Output]) -> list[dict[str, Any]]:
    """The fetched tensors of ``outputs``, in order."""
    return [
        {
            "name": flat_name(output, role),
            "tensor": part.tensor,
            "numpy": numpy_dtype(part.dtype),
            "of": output.name,
            "kind": output.kind,
            "role": role,
            "shape": None if part.shape is None else list(part.shape),
        }
        for output in outputs
        for role, part in output.parts.items()
    ]


def output_names(outputs: Iterable[Output]) -> list[tuple[str, str]]:
    """(name, dtype) of each fetched tensor: what two forms of a signature must have in common."""
    return [(flat_name(output, role), part.dtype) for output in outputs for role, part in output.parts.items()]


def _feature(feature: Feature, position: Mapping[str, int]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": feature.name,
        "kind": feature.kind,
        "values": position[feature.parts["values"]],
    }
    if feature.kind == "ragged":
        described["row_splits"] = [position[name] for name in feature.row_splits()]
    else:
        described["indices"] = position[feature.parts["indices"]]
        described["dense_shape"] = position[feature.parts["dense_shape"]]
    return described


def flat_name(output: Output, role: str) -> str:
    """Name of one fetched tensor: the output's own, or ``name/role`` for sparse and ragged ones."""
    return output.name if output.kind == "dense" else f"{output.name}/{role}"


def assemble(outputs: Iterable[Output], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs by name from the fetched arrays: arrays, SparseTensorValue, RaggedTensorValue; other composites stay
    flat."""
    result: dict[str, Any] = {}
    for output in outputs:
        if output.kind == "dense":
            result[output.name] = flat[output.name]
            continue
        parts = {role: flat[flat_name(output, role)] for role in output.parts}
        if output.kind == "sparse":
            result[output.name] = tf.compat.v1.SparseTensorValue(
                parts["indices"], parts["values"], parts["dense_shape"]
            )
        elif output.kind == "ragged":
            value = parts.pop("values")
            for splits in reversed(list(parts.values())):
                value = tf.compat.v1.ragged.RaggedTensorValue(value, splits)
            result[output.name] = value
        else:
            result |= {f"{output.name}/{role}": part for role, part in parts.items()}
    return result
