"""The walk: one pass over the graph in topological order that gives every tensor a :class:`~values.Value`.

A handler per op type (``handlers/``) turns the values of a node's inputs into the values of its outputs. Handlers never
search the graph for neighbours and never fail: what they do not know is :class:`~values.Opaque`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from tensorflow.core.framework.node_def_pb2 import NodeDef

from graph_opt.lookup_spec import Step
from graph_opt.recognise.facts import PASS_THROUGH, Facts
from graph_opt.recognise.values import Coords, Cut, Found, Opaque, PerValue, TableRef, Token, Value
from graph_opt.view import GraphView, canonical

HASH_LOOKUP = "TfctrHashLookup"
Handler = Callable[["Walk", NodeDef, list[Value]], "Value | list[Value | None] | None"]
_HANDLERS: dict[str, list[Handler]] = {}


def handles(*ops: str) -> Callable[[Handler], Handler]:
    """Registers a handler for op types. Several handlers of one op are asked in order until one knows the node."""

    def register(handler: Handler) -> Handler:
        for op in ops:
            _HANDLERS.setdefault(op, []).append(handler)
        return handler

    return register


class Walk:
    """The values of all tensors of one graph. ``tables``: node name -> position in the store."""

    def __init__(self, view: GraphView, facts: Facts, tables: Iterable[str]) -> None:
        self.view = view
        self.facts = facts
        self.tables = frozenset(t for t in tables if t not in view or view.node(t).op != HASH_LOOKUP)
        self.values: dict[str, Value] = {}
        self.found: dict[str, list[Found]] = {}  # by gather node, in the order of the walk
        self.uniques: dict[str, PerValue] = {}  # tensor of distinct elements -> the chain they were taken from

    def run(self) -> None:
        """Visits every node once."""
        for node in self.view.topological():
            if node.op in PASS_THROUGH or self.facts.waits_for_effect(node):
                continue
            if node.name in self.tables:
                self.values[f"{node.name}:0"] = TableRef(f"{node.name}:0", node.name)
                continue
            inputs = [self.value(t) for t in self.view.inputs(node)]
            for handler in _HANDLERS.get(node.op, ()):
                result = handler(self, node, inputs)
                if result is not None:
                    self._store(node, result)
                    break

    def value(self, tensor: str) -> Value:
        """What is known of a tensor; identities are looked through."""
        tensor = self.facts.root(tensor)
        return self.values.get(tensor) or Opaque(tensor)

    def _store(self, node: NodeDef, result: Value | list[Value | None]) -> None:
        for port, value in enumerate(result if isinstance(result, list) else [result]):
            if value is None:
                continue
            tensor = f"{node.name}:{port}"
            value = dataclasses.replace(value, tensor=tensor)
            if isinstance(value, PerValue | Coords):
                value = _with_cut(value)
            if isinstance(value, Found):
                value = dataclasses.replace(value, trace=(*value.trace, tensor))
                self.found.setdefault(value.gather, []).append(value)
            self.values[tensor] = value

    # What handlers ask

    def const(self, value: Value | str) -> np.ndarray | None:
        """The value of a tensor where it is known, else None."""
        return self.facts.const(value if isinstance(value, str) else value.tensor)

    def scalar(self, value: Value | str) -> int | float | str | bool | None:
        """The one number or string that a constant tensor holds (in all its elements), else None."""
        array = self.const(value)
        if array is None:
            node = self.view.producer(value if isinstance(value, str) else value.tensor)
            array = self.const(self.view.inputs(node)[1]) if node.op == "Fill" else None
        if array is None or array.size == 0 or not (array.reshape(-1) == array.reshape(-1)[0]).all():
            return None
        item = array.reshape(-1)[0]
        if isinstance(item, bytes):
            return item.decode("utf-8", "surrogateescape")
        return item.item() if isinstance(item, np.generic) else item

    def output(self, node: NodeDef, port: int = 0) -> str:
        return canonical(f"{node.name}:{port}")

    def rank(self, value: Value | str) -> int | None:
        return self.facts.rank(value if isinstance(value, str) else value.tensor)

    def shape(self, value: Value | str) -> list[int | None] | None:
        return self.facts.shape(value if isinstance(value, str) else value.tensor)

    def dtype(self, value: Value | str) -> str:
        """Name of a tensor's dtype: "int64", "string"..."""
        return self.facts.dtype(value if isinstance(value, str) else value.tensor).name

    def table_shape(self, table: str) -> list[int | None] | None:
        """Static shape of a table of ``Found.tables``; a hash file has 0 rows: any number is a key of it."""
        node = self.view.node(table)
        return [0, node.attr["dim"].i] if node.op == HASH_LOOKUP else self.shape(f"{table}:0")

    def table_width(self, found: Found) -> int | None:
        """Columns of the table that ``found`` reads."""
        shape = self.table_shape(found.tables[0])
        return shape[1] if shape is not None and len(shape) == 2 else None

    def per_value(self, value: Value) -> PerValue | None:
        """``value`` as a chain of per-value elements; an opaque tensor starts a chain of its own."""
        if isinstance(value, PerValue):
            return value
        if isinstance(value, Opaque):
            return PerValue(value.tensor, value.tensor, cuts=(Cut(value.tensor, 0, 0),))
        return None


def with_step(chain: PerValue, *steps: Step) -> PerValue:
    return dataclasses.replace(chain, steps=(*chain.steps, *steps))


def with_token(chain: PerValue | Coords, token: Token) -> PerValue | Coords:
    return dataclasses.replace(chain, tokens=(*chain.tokens, token))


def _with_cut(value: PerValue | Coords) -> PerValue | Coords:
    # A cut of row numbers says in `steps` whether it is a column (1) or the index matrix (0).
    steps = len(value.steps) if isinstance(value, PerValue) else int(value.column is not None)
    return dataclasses.replace(value, cuts=(*value.cuts, Cut(value.tensor, steps, len(value.tokens))))
