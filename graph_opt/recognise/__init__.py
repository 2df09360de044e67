"""Finding embedding lookups by what they compute.

``find_lookups`` walks the reference graph once (``engine``), giving every tensor a meaning (``values``) by small
handlers per op type (``handlers/``), then describes every row gather as a lookup spec (``readings``, ``search``) or
says why it stays (``reasons``). What it finds is a hypothesis: the prover runs original and fused side by side before
anything is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from graph_opt.candidates import Candidate, Refusal
from graph_opt.recognise import handlers as _handlers  # noqa: F401 - registers the handlers
from graph_opt.recognise.engine import Walk
from graph_opt.recognise.facts import Facts
from graph_opt.recognise.left import other_readers
from graph_opt.recognise.scope import Scope
from graph_opt.recognise.search import Search
from graph_opt.view import GraphView, canonical


def input_names(signatures: Mapping[str, SignatureDef]) -> dict[str, str]:
    """Graph tensor -> name of the signature input that it is, or is a part of; the first name where several differ."""
    names: dict[str, str] = {}
    for signature in signatures.values():
        for name, info in signature.inputs.items():
            sparse = info.coo_sparse
            parts = [info.name, sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
            parts += [component.name for component in info.composite_tensor.components]
            for tensor in parts:
                if tensor:
                    names.setdefault(canonical(tensor), name)
    return names


def find_lookups(
    view: GraphView,
    fetches: Iterable[str],
    tables: Mapping[str, Any],
    *,
    inputs: Mapping[str, str] | None = None,
    facts: Facts | None = None,
    avoid: Collection[str] = (),
) -> tuple[list[Candidate], list[Refusal]]:
    """Every lookup on the way to ``fetches`` (graph tensors), as a candidate or a refusal, in topological order.

    tables: TfctrTable or TfctrHashLookup node name -> its store file (``name`` is used in refusals). inputs: graph
    tensor -> signature input name, for the lookups' names (default: the placeholder's name; see :func:`input_names`).
    facts: static facts of ``view`` where the caller has them. avoid: tensors that are not proposed as outputs, because
    their proof has failed (a nearer one takes their place). The graph is not changed.
    """
    facts = facts or Facts(view)
    fetches = list(fetches)
    walk = Walk(view, facts, tables)
    walk.run()
    scope = Scope(view, facts, fetches)
    candidates, refusals = Search(walk, scope, tables, dict(inputs or {}), avoid).run()
    return candidates, [*refusals, *other_readers(walk, scope, tables)]


__all__ = ["find_lookups", "input_names"]
