"""Compares two reference graphs node by node, from the outputs up, whatever their nodes are called.

Equal: operations, attributes, edges, shapes and dtypes, constants that are no weights, signatures. Free: names, values,
the contents of tables and vocabularies, where resources and assets are called something. The first difference raises
ConvertAnewError, which names the node and both sides.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.item import GraphItem, StoreFile, tensor_names
from graph_opt.renewal.functions import FREE_ATTRS, function_hash
from graph_opt.renewal.record import made_of_values
from graph_opt.renewal.weights import is_weight, value_of
from graph_opt.view import GraphView, canonical, is_control, node_of, port_of
from tfctr.errors import ConvertAnewError

CONSTANT = "tfctr/constant/"  # prefix of a variable that became a constant
_STORE_OPS = ("TfctrTable", "TfctrVocabFind", "TfctrHashLookup")


@dataclasses.dataclass(frozen=True)
class Match:
    """nodes: node of the old reference graph -> node of the new one. files: the same for store files, by index."""

    nodes: dict[str, str]
    files: dict[int, int]


def match(old: GraphItem, new: GraphItem) -> Match:
    """Pairs the nodes of two reference graphs; ConvertAnewError where they differ."""
    return _Matcher(old, new).run()


class _Matcher:
    def __init__(self, old: GraphItem, new: GraphItem) -> None:
        self.old, self.new = old, new
        self.views = (GraphView(old.graph_def), GraphView(new.graph_def))
        self.made = (made_of_values(old), made_of_values(new))
        self.assets = {node_of(a.tensor_info.name) for a in old.assets}
        self.functions = (_Library(old), _Library(new))
        self.nodes: dict[str, str] = {}
        self.taken: dict[str, str] = {}  # node of the new graph -> of the old one
        self.files: dict[int, int] = {}
        self.pending: list[tuple[str, str, str]] = []

    def run(self) -> Match:
        by_name = {(f.kind, f.name): f for f in self.new.files}
        for file in self.old.files:  # a table says more than the first node that its width reaches
            compare_files(file, by_name.get((file.kind, file.name), file))
        self._signatures()
        if (self.old.init_op is None) != (self.new.init_op is None):
            raise changed("the initialiser", self.old.init_op or "none", self.new.init_op or "none")
        if self.old.init_op and self.new.init_op:
            self._pair(self.old.init_op, self.new.init_op, "the initialiser")
        if len(self.old.assets) != len(self.new.assets):
            names = [", ".join(a.filename for a in item.assets) or "none" for item in (self.old, self.new)]
            raise changed("the assets", *names)
        for a, b in zip(self.old.assets, self.new.assets, strict=True):
            self._pair(node_of(a.tensor_info.name), node_of(b.tensor_info.name), f"the asset {a.filename!r}")
        while self.pending:
            self._compare(*self.pending.pop())
        return Match(self.nodes, self.files)

    def _signatures(self) -> None:
        old, new = self.old.signatures, self.new.signatures
        if sorted(old) != sorted(new):
            raise changed("the signatures", ", ".join(sorted(old)), ", ".join(sorted(new)))
        for name in sorted(old):
            for what, a, b in (
                ("input", old[name].inputs, new[name].inputs),
                ("output", old[name].outputs, new[name].outputs),
            ):
                if sorted(a) != sorted(b):
                    raise changed(f"signature {name!r}: its {what}s", ", ".join(sorted(a)), ", ".join(sorted(b)))
                for key in sorted(a):
                    self._infos(f"signature {name!r}, {what} {key!r}", a[key], b[key])

    def _infos(self, what: str, a: meta_graph_pb2.TensorInfo, b: meta_graph_pb2.TensorInfo) -> None:
        texts = [_info_text(info) for info in (a, b)]
        if texts[0] != texts[1]:
            raise changed(what, *texts)
        for one, other in zip(tensor_names(a), tensor_names(b), strict=True):
            self._edge(what, one, other)

    def _edge(self, what: str, old: str, new: str) -> None:
        if port_of(old) != port_of(new):
            raise changed(f"{what}: output number of {node_of(old)!r}", str(port_of(old)), str(port_of(new)))
        self._pair(node_of(old), node_of(new), what)

    def _pair(self, old: str, new: str, what: str) -> None:
        if self.nodes.get(old, new) != new or self.taken.get(new, old) != old:
            raise changed(f"{what}: it reads", repr(old), f"{new!r}, which stands for {self.taken.get(new, '')!r}")
        if old not in self.nodes:
            self.nodes[old], self.taken[new] = new, old
            self.pending.append((old, new, what))

    def _compare(self, old: str, new: str, what: str) -> None:
        a, b = self.views[0].node(old), self.views[1].node(new)
        named = f"node {old!r}" + ("" if old == new else f" ({new!r} in the new model)")
        if a.op != b.op:
            raise changed(f"{named} (read by {what})" if what else named, a.op, b.op)
        if a.device != b.device:
            raise changed(f"{named}: its device", a.device or "none", b.device or "none")
        if a.op in _STORE_OPS:
            self._compare_file(named, a, b)
        elif a.op == "Const":
            self._compare_constant(named, a, b)
        else:
            self._compare_attrs(named, a, b, frozenset())
        data = [[i for i in node.input if not is_control(i)] for node in (a, b)]
        if len(data[0]) != len(data[1]):
            raise changed(f"{named}: number of inputs", str(len(data[0])), str(len(data[1])))
        for one, other in zip(*data, strict=True):
            self._edge(named, canonical(one), canonical(other))
        self._compare_controls(named, a, b)

    def _compare_controls(self, named: str, a: node_def_pb2.NodeDef, b: node_def_pb2.NodeDef) -> None:
        waits = [sorted(node_of(i) for i in node.input if is_control(i)) for node in (a, b)]
        if len(waits[0]) != len(waits[1]):
            raise changed(f"{named}: number of nodes that it waits for", str(len(waits[0])), str(len(waits[1])))
        left = [n for n in waits[1] if n not in {self.nodes.get(o) for o in waits[0]}]
        for one in waits[0]:
            if self.nodes.get(one) in waits[1]:
                continue
            if not left:
                raise changed(f"{named}: it waits for", one, ", ".join(waits[1]))
            self._pair(one, left.pop(0), named)

    def _compare_file(self, named: str, a: node_def_pb2.NodeDef, b: node_def_pb2.NodeDef) -> None:
        numbers = (a.attr["index"].i, b.attr["index"].i)
        files = (self.old.files[numbers[0]], self.new.files[numbers[1]])
        compare_files(*files)
        if self.files.setdefault(numbers[0], numbers[1]) != numbers[1]:
            raise changed(f"{named}: it reads", files[0].name, files[1].name)
        self._compare_attrs(named, a, b, frozenset(("index", "shape")))

    def _compare_constant(self, named: str, a: node_def_pb2.NodeDef, b: node_def_pb2.NodeDef) -> None:
        kinds = [n.name in made for n, made in zip((a, b), self.made, strict=True)]
        weights = [is_weight(n, made) for n, made in zip((a, b), self.made, strict=True)]
        shapes = [_tensor_text(n.attr["value"].tensor) for n in (a, b)]
        named = f"variable {a.name.removeprefix(CONSTANT)!r}" if kinds[0] and a.name.startswith(CONSTANT) else named
        if shapes[0] != shapes[1]:
            raise changed(named, *shapes)
        if weights[0] != weights[1] or kinds[0] != kinds[1]:
            raise changed(named, *("a variable" if k else "a constant" for k in kinds))
        if weights[0] or a.name in self.assets:
            return
        values = value_of(a), value_of(b)
        if values[0].tolist() != values[1].tolist() and values[0].tobytes() != values[1].tobytes():
            raise changed(f"{named}: its value", *(_value_text(v) for v in values))

    def _compare_attrs(
        self, named: str, a: node_def_pb2.NodeDef, b: node_def_pb2.NodeDef, free: frozenset[str]
    ) -> None:
        names = {k for node in (a, b) for k in node.attr if k[:1] != "_" and k not in FREE_ATTRS and k not in free}
        for name in sorted(names):
            texts = [
                lib.text(n.attr[name]) if name in n.attr else "" for lib, n in zip(self.functions, (a, b), strict=True)
            ]
            if texts[0] != texts[1]:
                raise changed(f"{named} ({a.op}): attribute {name!r}", *(t or "not set" for t in texts))


def compare_files(old: StoreFile, new: StoreFile) -> None:
    """ConvertAnewError where dtype or shape of a table, or the width of an embedding variable, changed. A vocabulary
    may hold other entries, an embedding variable other keys.
    """
    same_shape = {"table": old.shape == new.shape, "hash": old.shape[1:] == new.shape[1:]}
    if old.kind != new.kind or old.dtype != new.dtype or not same_shape.get(old.kind, True):
        what = {"table": "table", "hash": "embedding variable"}.get(old.kind, "vocabulary") + f" {old.name!r}"
        if old.kind != "vocab" and old.name != new.name:
            what += f" ({new.name!r} in the new model)"
        raise changed(what, *(_file_text(f) for f in (old, new)))


def changed(what: str, old: str, new: str) -> ConvertAnewError:
    return ConvertAnewError(
        f"the structure changed: {what}: {old} in the bundle, {new} in the new model; convert the new model"
    )


class _Library:
    """The functions of one graph, compared by what they do: their names carry counters of the process."""

    def __init__(self, item: GraphItem) -> None:
        self._functions = {f.signature.name: f for f in item.graph_def.library.function}
        self._known: dict[str, str] = {}

    def text(self, value: attr_value_pb2.AttrValue) -> str:
        if not value.HasField("func") and not value.list.func:
            return " ".join(str(value).split())
        return ", ".join(self.hash_of(f.name) for f in value.list.func or [value.func])

    def hash_of(self, name: str) -> str:
        function = self._functions.get(name)
        if function is None:
            return name
        if name not in self._known:
            self._known[name] = "itself"
            self._known[name] = f"function {function_hash(function, self.hash_of)[:16]}"
        return self._known[name]


def _info_text(info: meta_graph_pb2.TensorInfo) -> str:
    """dtype and shape, and the form of a composite one."""
    shape = tf.TensorShape(info.tensor_shape)
    return f"{info.WhichOneof('encoding')} {tf.as_dtype(info.dtype).name if info.dtype else ''} {shape}".replace(
        "name ", ""
    )


def _tensor_text(tensor: Any) -> str:
    return f"{tf.as_dtype(tensor.dtype).name} {[d.size for d in tensor.tensor_shape.dim]}"


def _file_text(file: StoreFile) -> str:
    if file.kind == "table":
        return f"{file.dtype} {list(file.shape)}"
    return f"dim {file.shape[1]}" if file.kind == "hash" else f"{file.kind} of {file.dtype} keys"


def _value_text(value: Any) -> str:
    text = " ".join(str(value.tolist()).split())
    return text if len(text) <= 80 else text[:77] + "..."
