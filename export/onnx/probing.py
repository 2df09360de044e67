"""Runs of a model at several sizes, for what is always the same and what varies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx

from export.feeds import Sizes, random_feeds
from export.onnx.runtime import OnnxSession
from export.reasons import CannotExport, first_line
from export.tower import Tower
from export.tower_session import sizes_differ

# Differing in one size from the first; then in all.
PROBES = (
    Sizes(rows=3, user_rows=2, inner=4),
    Sizes(rows=5, user_rows=2, inner=4),
    Sizes(rows=3, user_rows=3, inner=4),
    Sizes(rows=3, user_rows=2, inner=7),
    Sizes(rows=7, user_rows=5, inner=6),
)


def run_probes(model: onnx.ModelProto, tower: Tower, tensors: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """Values of ``tensors`` (any of the model) at each of ``PROBES``; inputs have the tower's tensor names.

    Raises CannotExport where ONNX Runtime can't run the model.
    """
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    have = {one.name for one in probed.graph.output} | {one.name for one in probed.graph.input}
    probed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in have)
    inputs = {one.name for one in probed.graph.input}
    try:
        session = OnnxSession(probed)
    except Exception as error:  # of ONNX Runtime's own kind
        raise CannotExport(f"ONNX Runtime refuses it: {first_line(error)}") from error
    distinct = sizes_differ(tower)
    found = []
    for sizes in PROBES:
        feeds = random_feeds(tower, dataclasses.replace(sizes, distinct=distinct))
        fed = {one.tensor: feeds[one.name] for one in tower.inputs if one.tensor in inputs}
        try:
            outputs = session.fetch([name for name in tensors if name not in inputs], fed)
        except Exception as error:  # of ONNX Runtime's own kind
            raise CannotExport(f"ONNX Runtime can't run it at {sizes.rows} rows: {first_line(error)}") from error
        found.append({**fed, **outputs})
    return found
