"""Which inputs of a signature may come once per user, and the split form that takes them so: the ``users`` part of the
description that the C++ predictor is built from.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.bundle.user_rows import free_name
from tfctr.errors import CorruptFileError, UsageError
from tfctr.serving import feature_map
from tfctr.serving.signature_info import Feature, Input, SignatureInfo, read_signature

PACKED_INPUTS = ("arena", "shapes", "strings")

Definitions = Mapping[str, meta_graph_pb2.SignatureDef]


@dataclasses.dataclass(frozen=True)
class UserInputs:
    """What is declared of users. features: names of features and plain inputs, sorted. inputs: the graph inputs behind
    them. row_to_user: name of the input that says which user row each row belongs to, int64 [B]. split: the manifest's
    entry of the split form, None where there is none."""

    features: tuple[str, ...]
    inputs: frozenset[str]
    row_to_user: str
    split: Mapping[str, Any] | None


def user_inputs(
    where: str,
    info: SignatureInfo,
    features: Sequence[Feature],
    described: Mapping[str, Any],
    wanted: Iterable[str],
) -> UserInputs | None:
    """The user inputs that the manifest's entry ``described`` declares, and those that ``wanted`` (names or shell
    patterns of features, or of any of their inputs) adds; None where there are none.

    Raises:
      UsageError: a name of ``wanted`` matches nothing.
      CorruptFileError: the manifest names an input that the signature does not have.
    """
    split = described.get("split") or None
    declared = described.get("user") or {}
    names = [one.name for one in info.inputs]
    inputs = set(declared.get("inputs", ())) | set(split["user_inputs"] if split else ())
    unknown = sorted(inputs - set(names))
    if unknown:
        raise CorruptFileError(f"{where}: the manifest names the user input {unknown[0]!r}, which it does not have")
    in_feature = {part: feature.name for feature in features for part in feature.parts.values()}
    parts = {feature.name: tuple(feature.parts.values()) for feature in features}
    parts |= {name: (name,) for name in names if name not in in_feature}
    for pattern in wanted:
        matched = [
            name for name, its in parts.items() if any(fnmatch.fnmatchcase(one, pattern) for one in (name, *its))
        ]
        if not matched:
            there = ", ".join(sorted(parts))
            raise UsageError(f"{where}: no feature or input {pattern!r} to be a user feature; there is: {there}")
        inputs.update(part for name in matched for part in parts[name])
    if not inputs:
        return None
    told = tuple(sorted({in_feature.get(name, name) for name in inputs}))
    row_to_user = split["row_to_user"] if split else free_name({*names, *parts})
    return UserInputs(told, frozenset(inputs), row_to_user, split)


def packed_tensors(where: str, definitions: Definitions, name: str) -> dict[str, str | None]:
    """Graph tensors of the packed signature ``name``; CorruptFileError where the model lacks it."""
    inputs = definition(where, definitions, name).inputs
    return {key: inputs[key].name if key in inputs else None for key in PACKED_INPUTS}


def definition(where: str, definitions: Definitions, name: str) -> meta_graph_pb2.SignatureDef:
    """The SignatureDef that the manifest names; CorruptFileError where the model lacks it."""
    if name not in definitions:
        raise CorruptFileError(f"{where}: the manifest names the signature {name!r}, which the model does not have")
    return definitions[name]


def describe(where: str, info: SignatureInfo, users: UserInputs, definitions: Definitions) -> dict[str, Any]:
    """The ``users`` of ``feature_map.describe``."""
    return {
        "parts": [number for number, one in enumerate(info.inputs) if one.name in users.inputs],
        "row_to_user": users.row_to_user,
        "split": None if users.split is None else _split(where, info, users, users.split, definitions),
    }


def _split(
    where: str, info: SignatureInfo, users: UserInputs, split: Mapping[str, Any], definitions: Definitions
) -> dict[str, Any]:
    """The split form: its inputs as numbers of the plain form's (row_to_user comes after them)."""
    form = read_signature(definition(where, definitions, split["signature"]))
    known: dict[str, tuple[int, Input | None]] = {one.name: (k, one) for k, one in enumerate(info.inputs)}
    known[users.row_to_user] = (len(info.inputs), None)
    numbers = []
    for one in form.inputs:
        number, plain = known.pop(one.name, (-1, None))
        dtype = "int64" if plain is None else plain.dtype
        if number < 0 or dtype != one.dtype:
            raise CorruptFileError(
                f"{where}: the signature {split['signature']!r} takes {one.dtype} {one.name!r}, unlike the plain one"
            )
        numbers.append(number)
    if known:
        raise CorruptFileError(f"{where}: the signature {split['signature']!r} does not take {next(iter(known))!r}")
    outputs = form.outputs
    packed = None
    if split.get("packed"):
        packed = packed_tensors(where, definitions, split["packed"])
        outputs = read_signature(definitions[split["packed"]]).outputs
    if feature_map.output_names(outputs) != feature_map.output_names(info.outputs):
        raise CorruptFileError(f"{where}: the signature {split['signature']!r} has other outputs than the plain one")
    once = set(split["user_inputs"])
    return {
        "parts": numbers,
        "tensors": [one.tensor for one in form.inputs],
        "once": [number for number, one in enumerate(info.inputs) if one.name in once],
        "packed": packed,
        "outputs": feature_map.describe_outputs(outputs),
    }
