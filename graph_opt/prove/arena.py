"""The proof graph: originals and fused lookups side by side over one set of surrogate tables, in one session.

Nothing is optimised (no grappler, no constant folding): what runs is what the graphs say. One callable per side and
spec: a joint run would hide which of them failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from graph_opt.fused_node import bind_arguments, empty_constants, fused_node, output_form
from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step
from graph_opt.prove.cone import STORE_OP, Cone, copy_nodes, needs_library
from graph_opt.prove.probes import Source
from graph_opt.view import GraphView

_STORE = "store"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One spec to be proven: its cone in the reference graph (of these ops) and what its sources are."""

    spec: LookupSpec
    cone: Cone
    sources: Mapping[str, Source]
    ops: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Result:
    """What one side gave: a value, or the error's class name and message."""

    value: np.ndarray | None
    error: str = ""
    message: str = ""


class Arena:
    """A session over ``entries``; ``files``: store index -> (path, kind) of the file that stands for it here.

    Use as a context manager. :meth:`original` and :meth:`fused` run one side of one entry on one set of feeds.
    """

    def __init__(self, view: GraphView, entries: Sequence[Entry], files: Mapping[int, tuple[Path, str]]) -> None:
        self._order = sorted(files)
        self._position = {index: k for k, index in enumerate(self._order)}
        graph_def = graph_pb2.GraphDef()
        graph_def.versions.CopyFrom(view.graph_def.versions)
        if needs_library(view.node(name) for e in entries for name in e.cone.nodes):
            graph_def.library.CopyFrom(view.graph_def.library)
        graph_def.node.extend(_store_nodes(f"proof_{id(self)}", [files[i][1] for i in self._order]))
        graph_def.node.extend(empty_constants(""))
        self._fetches: list[tuple[str, str, list[str], list[str]]] = []
        for k, entry in enumerate(entries):
            self._fetches.append(self._add_entry(view, graph_def, k, entry))
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(graph_def, name="")
        self._session = tf.compat.v1.Session(graph=self._graph, config=_config())
        self._calls: dict[tuple[int, bool], Callable[..., list[np.ndarray]]] = {}
        self._session.run("open", {"filenames:0": np.asarray([str(files[i][0]) for i in self._order], object)})

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def original(self, entry: int, feeds: Mapping[str, np.ndarray]) -> Result:
        """Runs the reference subgraph of entry number ``entry``; ``feeds`` by source tensor."""
        return self._run(entry, False, feeds)

    def fused(self, entry: int, feeds: Mapping[str, np.ndarray]) -> Result:
        """Runs the fused op of entry number ``entry``; ``feeds`` by source tensor."""
        return self._run(entry, True, feeds)

    def _run(self, entry: int, fused: bool, feeds: Mapping[str, np.ndarray]) -> Result:
        original, other, sources, placeholders = self._fetches[entry]
        call = self._calls.get((entry, fused))
        if call is None:
            # The session's own fast path: make_callable spends ten times what these small graphs take to run.
            options = config_pb2.CallableOptions(feed=placeholders, fetch=[other if fused else original])
            call = self._session._make_callable_from_options(options)
            self._calls[entry, fused] = call
        try:
            return Result(call(*(feeds[s] for s in sources))[0])
        except tf.errors.OpError as error:
            return Result(None, type(error).__name__, _core_message(str(error.message)))

    def _add_entry(
        self, view: GraphView, graph_def: graph_pb2.GraphDef, number: int, entry: Entry
    ) -> tuple[str, str, list[str], list[str]]:
        tensors = list(entry.sources)
        placeholders = {}
        for j, tensor in enumerate(tensors):
            node = graph_def.node.add(name=f"p{number}/{j}", op="Placeholder")
            node.attr["dtype"].type = tf.as_dtype(_tf_dtype(entry.sources[tensor].dtype)).as_datatype_enum
            node.attr["shape"].shape.unknown_rank = True
            placeholders[tensor] = f"{node.name}:0"
        original = copy_nodes(view, entry.cone, graph_def, f"o{number}/", placeholders, _STORE, self._position)
        spec = _renumbered(entry.spec, self._position)
        arguments, bind = bind_arguments([spec])
        output = OutputSpec(form=output_form(spec), columns=spec.width, dtype=spec.table_dtype)
        types = [tf.as_dtype(_tf_dtype(entry.sources[t].dtype)).as_datatype_enum for t in arguments]
        fused = fused_node(
            f"f{number}",
            _STORE,
            ["no_arena", "no_shapes", "no_strings"],
            [placeholders[t] for t in arguments],
            types,
            [(spec, Placement(0, 0))],
            [output],
            bind,
        )
        graph_def.node.append(fused)
        return original, f"f{number}:0", tensors, [placeholders[t] for t in tensors]


def _core_message(message: str) -> str:
    """The kernel's own line of an error that TensorFlow has wrapped in where and how it was called."""
    lines = message.split("\n")
    end = next((k for k, line in enumerate(lines) if line.startswith("\t [[")), len(lines))
    own = [line.strip() for line in lines[:end] if line.strip()]
    return own[-1] if own else message


def _renumbered(spec: LookupSpec, position: Mapping[int, int]) -> LookupSpec:
    """The spec with store indices of the proof graph."""
    steps = tuple(
        Step(s.kind, (str(position[int(s.args[0])]), *s.args[1:])) if s.kind in ("vocab", "vocab_oov") else s
        for s in spec.steps
    )
    return dataclasses.replace(spec, table=position[spec.table], steps=steps)


def _tf_dtype(dtype: np.dtype) -> tf.DType:
    return tf.string if dtype == np.object_ else tf.as_dtype(dtype)


def _store_nodes(shared_name: str, kinds: Sequence[str]) -> list[node_def_pb2.NodeDef]:
    """The store, a placeholder for the file names, and the node that opens them."""
    store = node_def_pb2.NodeDef(name=_STORE, op=STORE_OP)
    store.attr["container"].s = b""
    store.attr["shared_name"].s = shared_name.encode()
    names = node_def_pb2.NodeDef(name="filenames", op="Placeholder")
    names.attr["dtype"].type = tf.string.as_datatype_enum
    names.attr["shape"].shape.dim.add().size = len(kinds)
    opened = node_def_pb2.NodeDef(name="open", op="TfctrStoreOpen", input=[_STORE, "filenames"])
    opened.attr["kinds"].list.SetInParent()
    opened.attr["kinds"].list.s.extend(kind.encode() for kind in kinds)
    opened.attr["fingerprints"].list.SetInParent()
    opened.attr["fingerprints"].list.s.extend([b""] * len(kinds))
    return [store, names, opened]


def _config() -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1, device_count={"GPU": 0}
    )
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.rewrite_options.constant_folding = rewriter_config_pb2.RewriterConfig.OFF
    return config
