"""The last check of a conversion: reference and converted graph on the same inputs, signature by signature."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem, output_names, output_tensors
from graph_opt.light_session import LightSession
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity, compare_all, with_drift
from graph_opt.recheck_users import SplitRuns, compare_split, split_feeds, user_cases
from graph_opt.sessions import ItemSession, what_happened
from graph_opt.signature_info import signature_info
from tfctr.bundle.packing import pack
from tfctr.bundle.sample_inputs import generate
from tfctr.errors import InputError

Progress = Callable[[str, int, int], None]


def compare_items(
    reference: GraphItem,
    item: GraphItem,
    described: Mapping[str, Any],
    options: ConvertOptions,
    restore: str | None,
    progress: Progress,
    *,
    drift: bool = True,
) -> list[OutputParity]:
    """Compares every output of every optimised signature; of its packed form too, where it has one.

    restore: checkpoint of the mutable state. Fresh sessions for each signature, so that counters start alike. drift:
    also run the reference with TensorFlow's optimisers, to say how far they move its outputs (takes most of the time).
    """
    found: list[OutputParity] = []
    for number, name in enumerate(item.optimise):
        progress("compare outputs", number, len(item.optimise))
        inputs = inputs_of(described[name], options, name)
        names = output_names(item, name)
        want = _run_original(reference, name, inputs, restore, options)
        moved = _run(reference, name, inputs, restore, optimised=True) if drift else None
        pairs = [(name, _run(item, name, inputs, restore))]
        if name in item.packed:
            pairs.append((item.packed[name], _run_packed(item, name, described[name], inputs, restore)))
        for form, got in pairs:
            found += with_drift(compare_all(form, names, got, want), moved, want)
        if name in item.split:
            found += _compare_split(reference, item, name, described[name], options, restore, drift=drift)
    progress("compare outputs", len(item.optimise), len(item.optimise))
    return found


def _compare_split(
    reference: GraphItem,
    item: GraphItem,
    name: str,
    info: Mapping[str, Any],
    options: ConvertOptions,
    restore: str | None,
    *,
    drift: bool = True,
) -> list[OutputParity]:
    """The split form (and its packed form) against the reference on repeated rows."""
    form = item.split[name].signature
    samples = None if options.read_samples is None else inputs_of(info, options, name)
    forms = [(form, output_tensors(item, form), split_feeds(item, form))]
    if form in item.packed:
        described = signature_info(item.signatures[form])
        packed = item.packed[form]
        forms.append((packed, output_tensors(item, packed), lambda i: packed_feeds(item, form, described, i)))
    runs = SplitRuns(
        output_names(item, name), output_tensors(reference, name), lambda i: _feeds(reference, name, i), forms
    )
    cases = user_cases(info, item.split[name], options, samples)
    return compare_split(reference, item, runs, cases, restore, drift=drift)


def inputs_of(info: Mapping[str, Any], options: ConvertOptions, name: str) -> dict[str, Any]:
    """The samples of ``options``, else generated inputs; InputError where samples lack an input."""
    if options.read_samples is None:
        return generate(info, options.sample_rows, options.seed)
    inputs = options.read_samples(info)
    missing = [entry["name"] for entry in info["inputs"] if entry["name"] not in inputs]
    if missing:
        raise InputError(f"{options.samples_path}: signature {name!r} needs the input {missing[0]!r}")
    return dict(inputs)


def _run_original(
    reference: GraphItem, name: str, inputs: Mapping[str, Any], restore: str | None, options: ConvertOptions
) -> list[Any]:
    """The reference's outputs; InputError where it refuses the samples or the generated inputs: nothing can be
    compared then.
    """
    try:
        return _run(reference, name, inputs, restore)
    except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
        happened = what_happened(str(getattr(error, "message", error)))
        if options.read_samples is None:
            raise InputError(
                f"signature {name!r}: the model refuses generated inputs ({happened}); give some that suit it with "
                "--samples FILE"
            ) from error
        raise InputError(
            f"{options.samples_path}: the model refuses these inputs for signature {name!r}: {happened}"
        ) from error


def _run(
    item: GraphItem, name: str, inputs: Mapping[str, Any], restore: str | None, *, optimised: bool = False
) -> list[Any]:
    with LightSession(item, restore=restore, optimised=optimised) as session:
        return session.run(output_tensors(item, name), _feeds(item, name, inputs))


def call_of(
    stack: contextlib.ExitStack,
    item: GraphItem,
    name: str,
    info: Mapping[str, Any],
    inputs: Mapping[str, Any],
    restore: str | None,
    *,
    packed: bool,
) -> Callable[[], list[Any]]:
    """One run of signature ``name`` (or of its packed form) on ``inputs``, ready to be repeated; TensorFlow's
    optimisers are on. The session lives as long as ``stack``.
    """
    feeds = packed_feeds(item, name, info, inputs) if packed else _feeds(item, name, inputs)
    tensors = output_tensors(item, item.packed[name] if packed else name)
    session = stack.enter_context(ItemSession(item, restore=restore, optimised=True))
    return lambda: session.run(tensors, feeds)


def _run_packed(
    item: GraphItem, name: str, info: Mapping[str, Any], inputs: Mapping[str, Any], restore: str | None
) -> list[Any]:
    feeds = packed_feeds(item, name, info, inputs)
    with LightSession(item, restore=restore) as session:
        return session.run(output_tensors(item, item.packed[name]), feeds)


def _feeds(item: GraphItem, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {entry["tensor"]: inputs[entry["name"]] for entry in signature_info(item.signatures[name])["inputs"]}


def packed_feeds(item: GraphItem, name: str, info: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``inputs`` of signature ``name`` as its packed form takes them, by graph tensor. info: of the signature."""
    arrays = {entry["tensor"]: _as(entry["dtype"], inputs[entry["name"]]) for entry in info["inputs"]}
    arena, shapes, strings = pack([arrays[tensor] for tensor in item.feeds(name)])
    packed = item.signatures[item.packed[name]]
    values = {"arena": arena, "shapes": shapes, "strings": strings}
    return {packed.inputs[key].name: values[key] for key in packed.inputs}


def _as(dtype: str, value: Any) -> Any:
    array = np.asarray(value)
    if dtype == "string":
        return array if array.dtype == object else array.astype(object)
    return array.astype(dtype) if dtype != "bfloat16" else array


def outputs_of(item: GraphItem, name: str, inputs: Mapping[str, Any], restore: str | None) -> dict[str, Any]:
    """Outputs of signature ``name`` by name, on ``inputs``; ``item`` is finished. TensorFlow's errors pass through."""
    return dict(zip(output_names(item, name), _run(item, name, inputs, restore), strict=True))


def packed_outputs_of(
    item: GraphItem, name: str, info: Mapping[str, Any], inputs: Mapping[str, Any], restore: str | None
) -> dict[str, Any]:
    """The same by the packed form of the signature."""
    return dict(zip(output_names(item, name), _run_packed(item, name, info, inputs, restore), strict=True))


def split_against_plain(
    item: GraphItem, described: Mapping[str, Any], options: ConvertOptions, restore: str | None
) -> list[OutputParity]:
    """Split forms of a finished ``item`` against its own plain forms on repeated rows."""
    found: list[OutputParity] = []
    for name in item.optimise:
        if name in item.split:
            found += _compare_split(item, item, name, described[name], options, restore)
    return found


def feeds_of(item: GraphItem, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``inputs`` of signature ``name`` by graph tensor."""
    return _feeds(item, name, inputs)
