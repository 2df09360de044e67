"""How many operations a model runs, and how much disk its bundle needs."""

from __future__ import annotations

from graph_opt.hash_files import file_bytes, table_shape, tensor_key
from graph_opt.item import GraphItem
from graph_opt.passes.prune_training import prune
from graph_opt.saved_model import SavedModelSource
from graph_opt.store_files import Checkpoint
from graph_opt.view import GraphView


def pruned(item: GraphItem) -> GraphItem:
    """A copy without what no signature needs."""
    copy = item.copy()
    prune(copy)
    return copy


def op_count(item: GraphItem) -> int:
    """Operations other than constants that the optimised signatures (their packed form, where there is one) run."""
    view = GraphView(item.graph_def)
    needed: set[str] = set()
    for name in item.optimise:
        needed |= view.ancestors(item.fetches(item.packed.get(name, name)))
    return sum(view.node(n).op not in ("Const", "NoOp") for n in needed)


def disk_needed(item: GraphItem, source: SavedModelSource) -> int:
    """Bytes of the bundle, from above: every variable and embedding variable that serving needs, parts of
    partitioned ones twice (merged), the assets.
    """
    copy = pruned(item)
    needed = 64 << 20
    if copy.variables:
        entries = Checkpoint(source.checkpoint).entries
        for name, ref in copy.variables.items():
            size = entries[ref.key].bytes if ref.key in entries else 0
            needed += size * (2 if ref.slice or "/part_" in name else 1)
    places = set(copy.embedding_tables.values())
    if places:
        checkpoint = Checkpoint(source.checkpoint)
        needed += sum(
            file_bytes(table_shape(checkpoint, p)) for p in places if tensor_key(p, "values") in checkpoint.entries
        )
    for folder in ("assets", "assets.extra"):
        needed += 2 * sum(p.stat().st_size for p in (source.path / folder).rglob("*") if p.is_file())
    return needed + 2 * source.meta_graph.ByteSize()
