"""Write, test and register your own graph pass (docs/passes_howto.md has a runnable example).

A pass is a function of a :class:`GraphItem` and :class:`ConvertOptions` that edits the item's graph through a
:class:`GraphView` and returns a :class:`PassOutcome`. ``tfctr.convert(..., extra_passes=[Pass(...)])`` runs it when
lookups are fused, before inputs are packed. A pass that raises or leaves an illegal graph is undone and reported.

    GraphView, canonical, node_of, port_of   producers, consumers and safe edits of a GraphDef
    GraphItem                                the model: graph, signatures, tables
    Pass, PassOutcome, Refused               what a pass is and what it says about its run
    graph_item, Tables                       small graphs by hand, for tests
    apply, assert_rewrites, assert_refused   run a pass on a copy; equal numbers, twice = once, why not
    run_item, graph_text, op_counts          look at a graph
"""

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.pipeline import DEFAULT_PASSES
from graph_opt.report import Pass, PassOutcome, Refused
from graph_opt.store_files import constant_node
from graph_opt.testing import (
    Tables,
    apply,
    assert_refused,
    assert_rewrites,
    graph_item,
    graph_text,
    op_counts,
    run_item,
)
from graph_opt.verify import BrokenGraph, verify
from graph_opt.view import GraphView, canonical, node_of, port_of

__all__ = [
    "DEFAULT_PASSES",
    "BrokenGraph",
    "ConvertOptions",
    "GraphItem",
    "GraphView",
    "Pass",
    "PassOutcome",
    "Refused",
    "Tables",
    "apply",
    "assert_refused",
    "assert_rewrites",
    "canonical",
    "constant_node",
    "graph_item",
    "graph_text",
    "node_of",
    "op_counts",
    "port_of",
    "run_item",
    "verify",
]
