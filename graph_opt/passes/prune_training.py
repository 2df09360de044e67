"""Removes what no signature, initialiser or asset needs: optimizer slots, save and restore ops, other training
leftovers.
"""

from __future__ import annotations

from graph_opt.inlining import prune_library
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import PassOutcome
from graph_opt.view import GraphView

EXAMPLE = """\
before  Adam/m, Adam/v, save/SaveV2, save/RestoreV2, emb -> lookup -> tower -> score
after   emb -> lookup -> tower -> score
"""


def prune_training(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """Keeps the ancestors of ``item.keep()`` only."""
    del options
    removed = prune(item)
    return PassOutcome(fired=removed, notes=(f"{removed} nodes that no signature needs",) if removed else ())


def prune(item: GraphItem) -> int:
    """Removes unneeded nodes and library functions; returns how many nodes went."""
    view = GraphView(item.graph_def)
    needed = view.ancestors(item.keep())
    gone = [node.name for node in view if node.name not in needed]
    view.remove(gone)
    prune_library(item.graph_def)
    item.variables = {name: ref for name, ref in item.variables.items() if name in needed}
    item.restored_tables = {name: keys for name, keys in item.restored_tables.items() if name in needed}
    item.embedding_tables = {name: place for name, place in item.embedding_tables.items() if name in needed}
    return len(gone)
