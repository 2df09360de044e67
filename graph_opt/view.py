"""An index over a GraphDef: producers, consumers and safe edits.

A :class:`GraphView` owns the GraphDef that it was given and keeps its index up to date through every edit made by its
methods; edits made behind its back are not seen. Not thread-safe. Building costs one walk over all inputs; every query
is a dictionary lookup.

Tensors are named "node:0" everywhere (``canonical``), control inputs "^node".
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tensorflow.core.framework import graph_pb2, node_def_pb2


def canonical(tensor: str) -> str:
    """ "node" -> "node:0"; control inputs ("^node") and "node:1" stay as they are."""
    return tensor if ":" in tensor or tensor[:1] == "^" else tensor + ":0"


def node_of(tensor: str) -> str:
    """The node name inside a tensor name or control input."""
    # The hottest function of every pass: no list, no second copy.
    end = tensor.find(":")
    start = 1 if tensor[:1] == "^" else 0
    return tensor[start:] if end < 0 else tensor[start:end]


def is_control(tensor: str) -> bool:
    return tensor.startswith("^")


def port_of(tensor: str) -> int:
    """Output number of a tensor name ("node" -> 0)."""
    _, _, port = tensor.partition(":")
    return int(port) if port else 0


def short(tensor: str) -> str:
    """The form GraphDefs store: "node:0" -> "node"."""
    return tensor.removesuffix(":0")


class GraphView:
    """Producers, consumers and safe edits of one GraphDef (see the module docstring)."""

    def __init__(self, graph_def: graph_pb2.GraphDef) -> None:
        self.graph_def = graph_def
        self._nodes: dict[str, node_def_pb2.NodeDef] = {}
        self._consumers: dict[str, dict[str, None]] = defaultdict(dict)
        for node in graph_def.node:
            if node.name in self._nodes:
                raise ValueError(f"two nodes are named {node.name!r}")
            self._nodes[node.name] = node
        for node in graph_def.node:
            self._index(node)

    # Queries

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[node_def_pb2.NodeDef]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, name: str) -> node_def_pb2.NodeDef:
        """The node of that name; KeyError where there is none."""
        return self._nodes[node_of(name)]

    def get(self, name: str) -> node_def_pb2.NodeDef | None:
        return self._nodes.get(node_of(name))

    def producer(self, tensor: str) -> node_def_pb2.NodeDef:
        """The node that computes ``tensor`` (or is meant by a control input); KeyError where there is none."""
        return self._nodes[node_of(tensor)]

    def inputs(self, node: node_def_pb2.NodeDef | str) -> list[str]:
        """Data inputs, canonical ("node:0")."""
        node = self.node(node) if isinstance(node, str) else node
        return [canonical(i) for i in node.input if not i.startswith("^")]

    def control_inputs(self, node: node_def_pb2.NodeDef | str) -> list[str]:
        """Names of the nodes that must run before ``node``."""
        node = self.node(node) if isinstance(node, str) else node
        return [i[1:] for i in node.input if i.startswith("^")]

    def users(self, node: str) -> list[str]:
        """Names of all nodes that read ``node`` or wait for it, without repeats."""
        return list(self._consumers.get(node, ()))

    def consumers(self, tensor: str) -> list[tuple[node_def_pb2.NodeDef, int]]:
        """(node, input number) for every data use of ``tensor``."""
        tensor = canonical(tensor)
        found = []
        for user in self._consumers.get(node_of(tensor), ()):
            node = self._nodes[user]
            found += [
                (node, k) for k, i in enumerate(node.input) if not i.startswith("^") and canonical(i) == tensor
            ]  # fmt: skip
        return found

    def data_consumers(self, node: str) -> list[tuple[node_def_pb2.NodeDef, int]]:
        """(node, input number) for every data use of any output of ``node``."""
        found = []
        for user in self._consumers.get(node, ()):
            consumer = self._nodes[user]
            found += [(consumer, k) for k, i in enumerate(consumer.input) if i[:1] != "^" and node_of(i) == node]
        return found

    def control_consumers(self, node: str) -> list[node_def_pb2.NodeDef]:
        """The nodes that have ``^node`` among their inputs."""
        return [self._nodes[u] for u in self._consumers.get(node, ()) if "^" + node in self._nodes[u].input]

    def ancestors(self, tensors: Iterable[str]) -> set[str]:
        """Names of all nodes needed to compute ``tensors`` (control inputs included), those nodes included."""
        pending = [node_of(t) for t in tensors]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or name not in self._nodes:
                continue
            seen.add(name)
            pending += [node_of(i) for i in self._nodes[name].input]
        return seen

    def topological(self) -> list[node_def_pb2.NodeDef]:
        """Nodes, producers first; stable (ties in graph order). ``NextIteration`` back edges of TF1 loops are ignored.

        ValueError names a node of the cycle where there is one.
        """
        names = list(self._nodes)
        order = {name: k for k, name in enumerate(names)}
        waits: dict[str, int] = {}
        users: dict[str, list[str]] = {name: [] for name in names}
        for name, node in self._nodes.items():
            sources = self._dependencies(node)
            waits[name] = len(sources)
            for source in sources:
                users[source].append(name)
        ready = [order[name] for name, count in waits.items() if count == 0]
        heapq.heapify(ready)
        result = []
        while ready:
            name = names[heapq.heappop(ready)]
            result.append(self._nodes[name])
            for user in users[name]:
                waits[user] -= 1
                if waits[user] == 0:
                    heapq.heappush(ready, order[user])
        if len(result) != len(names):
            stuck = next(name for name in names if waits[name] > 0)
            raise ValueError(f"the graph has a cycle through node {stuck!r}")
        return result

    def unique_name(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2``... where that is taken."""
        name, k = base, 0
        while name in self._nodes:
            k += 1
            name = f"{base}_{k}"
        return name

    # Edits

    def add(self, node: node_def_pb2.NodeDef) -> node_def_pb2.NodeDef:
        """Appends a copy of ``node`` and returns the node of the graph; ValueError where the name is taken."""
        if node.name in self._nodes:
            raise ValueError(f"a node named {node.name!r} exists already")
        self.graph_def.node.append(node)
        added = self.graph_def.node[-1]
        self._nodes[added.name] = added
        self._index(added)
        return added

    def set_inputs(self, node: str, inputs: Iterable[str]) -> None:
        """Replaces all inputs of ``node`` (data first, then control)."""
        target = self._nodes[node]
        for name in {node_of(i) for i in target.input}:
            self._consumers[name].pop(node, None)
        inputs = [i if i.startswith("^") else short(canonical(i)) for i in inputs]
        del target.input[:]
        target.input.extend(inputs)
        self._index(target)

    def replace_input(self, node: str, index: int, tensor: str) -> None:
        """Makes input number ``index`` of ``node`` read ``tensor``."""
        inputs = list(self._nodes[node].input)
        inputs[index] = tensor
        self.set_inputs(node, inputs)

    def replace_tensor(self, old: str, new: str, *, keep: Iterable[str] = ()) -> int:
        """Every data use of ``old`` reads ``new`` instead, except in nodes named in ``keep``. Returns the number of
        uses.
        """
        kept = set(keep)
        uses = [(node.name, k) for node, k in self.consumers(old) if node.name not in kept]
        for name, k in uses:
            self.replace_input(name, k, new)
        return len(uses)

    def replace_control(self, old: str, new: str | None) -> int:
        """Every ``^old`` becomes ``^new`` (or goes, where ``new`` is None). Returns the number of uses."""
        users = [n.name for n in self.control_consumers(old)]
        for user in users:
            inputs = [i for i in self._nodes[user].input if i != "^" + old]
            if new is not None and "^" + new not in inputs and new != user:
                inputs.append("^" + new)
            self.set_inputs(user, inputs)
        return len(users)

    def remove(self, names: Iterable[str]) -> None:
        """Removes nodes; ValueError, with nothing changed, where a node that stays still uses one of them."""
        gone = set(names) & set(self._nodes)
        for name in gone:
            for user in self._consumers.get(name, ()):
                if user not in gone:
                    raise ValueError(f"node {name!r} cannot be removed: {user!r} still uses it")
        for name in gone:
            for source in {node_of(i) for i in self._nodes[name].input}:
                self._consumers[source].pop(name, None)
            self._consumers.pop(name, None)
            del self._nodes[name]
        kept = [n for n in self.graph_def.node if n.name not in gone]
        self._rebuild(kept)

    def sort(self) -> None:
        """Reorders the GraphDef so that producers come first."""
        self._rebuild(self.topological())

    # Internals

    def _rebuild(self, nodes: list[node_def_pb2.NodeDef]) -> None:
        # Deleting from a repeated field one by one is quadratic; rebuilding it once is not. The nodes are new objects
        # after it.
        copies = graph_pb2.GraphDef(node=nodes)
        del self.graph_def.node[:]
        self.graph_def.node.MergeFrom(copies.node)
        self._nodes = {node.name: node for node in self.graph_def.node}

    def _index(self, node: node_def_pb2.NodeDef) -> None:
        for i in node.input:
            self._consumers[node_of(i)][node.name] = None

    def _dependencies(self, node: node_def_pb2.NodeDef) -> set[str]:
        found = {node_of(i) for i in node.input} & self._nodes.keys()
        if node.op in ("Merge", "RefMerge"):
            return {name for name in found if self._nodes[name].op not in ("NextIteration", "RefNextIteration")}
        return found
