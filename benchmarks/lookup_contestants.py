"""What bench_lookup lets run: the fused op on packed inputs, stock TensorFlow's lookups, and torch where installed."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.lookup_inputs import VOCABULARY, WIDTH, Batch


def _session(tf: Any, graph: Any) -> Any:
    # -1: ops run in the caller's thread, as tfctr's executor has it.
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
    config.use_per_session_threads = True
    return tf.compat.v1.Session(graph=graph, config=config)


class _Traced:
    """A session callable that returns op times from RunMetadata."""

    def _make(self, tf: Any, session: Any, fetch: Any, feeds: Sequence[Any]) -> None:
        self._tf, self._session, self._fetch, self._feeds = tf, session, fetch, list(feeds)
        self._options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)

    def _run(self, values: Sequence[Any], counts: Callable[[Any], bool]) -> tuple[float, np.ndarray]:
        metadata = self._tf.compat.v1.RunMetadata()
        output = self._session.run(
            self._fetch, dict(zip(self._feeds, values, strict=True)), options=self._options, run_metadata=metadata
        )
        stats = [n for d in metadata.step_stats.dev_stats for n in d.node_stats if counts(n)]
        return sum(n.op_end_rel_nanos - n.op_start_rel_nanos for n in stats) / 1e3, output


class FusedOp(_Traced):
    """One TfctrFusedLookup over table files, fed a packed arena. ``run(k)``: (microseconds, output) of batch k.

    storage: what the float32 tables are stored as ("float16", "bfloat16", "int8"); None: as they are.
    """

    def __init__(
        self, tables: Sequence[np.ndarray], batches: Sequence[Batch], folder: pathlib.Path, storage: str | None = None
    ):
        import tensorflow as tf

        from graph_opt.lookup_spec import LookupSpec, OutputSpec, Placement, Step, spec_text
        from tfctr.core import library

        ops, native = library.load(), library.native()
        self._tables = tables
        first = {id(table): i for i, table in reversed(list(enumerate(tables)))}  # features may share a table
        wide = [folder / f"t{first[id(table)]}.tbl" for table in tables]
        for file, table in zip(wide, tables, strict=True):
            if not file.exists():
                native.write_table(str(file), file.stem, table)
        self._files = [file.with_suffix(f".{storage}") if storage else file for file in wide]
        for file, narrow in zip(wide, self._files, strict=True):
            if not narrow.exists():
                native.narrow_table(str(file), storage, str(narrow))
        width = tables[0].shape[1]
        lookups: list[Any] = []
        bind: dict[str, str] = {}
        for f in range(len(tables)):
            spec = LookupSpec(
                name=f"f{f}",
                table=f,
                table_rows=len(tables[f]),
                table_width=width,
                table_dtype="float32",
                storage=storage,
                form="sparse",
                ids=f"ids{f}:0",
                rows=f"indices{f}:0",
                shape=f"shape{f}:0",
                steps=(Step("prune_negative"),),
                combiner="mean",
                empty="zeros",
                sort_rows=True,
            )
            lookups.append((spec, Placement(0, f * width)))
            bind |= {f"ids{f}:0": f"in:{3 * f}", f"indices{f}:0": f"in:{3 * f + 1}", f"shape{f}:0": f"in:{3 * f + 2}"}
        text = spec_text(lookups, [OutputSpec(form="rows", columns=width * len(tables), dtype="float32")], bind)
        graph = tf.Graph()
        with graph.as_default():
            store = ops.TfctrStore(container="", shared_name=f"bench {storage}")
            kinds, prints = ["table"] * len(tables), [""] * len(tables)
            opened = ops.TfctrStoreOpen(
                store=store, filenames=[str(f) for f in self._files], kinds=kinds, fingerprints=prints
            )
            arena = tf.compat.v1.placeholder(tf.uint8, [None])
            shapes = tf.compat.v1.placeholder(tf.int64, [None])
            output = ops.TfctrFusedLookup(
                store=store,
                arena=arena,
                shapes=shapes,
                strings=tf.constant([], tf.string),
                args=[],
                spec=text,
                layout=[tf.int64] * (3 * len(tables)),
                Tout=[tf.float32],
            )[0]
            session = _session(tf, graph)
            session.run(opened)
        self._make(tf, session, output, [arena, shapes])
        self._packed = [pack(batch) for batch in batches]

    def run(self, k: int) -> tuple[float, np.ndarray]:
        """Op time in microseconds and the output."""
        return self._run(self._packed[k], lambda n: "FusedLookup" in n.timeline_label or "FusedLookup" in n.node_name)

    def table_bytes(self) -> int:
        """Of the files that the op reads."""
        return sum(f.stat().st_size for f in dict.fromkeys(self._files))

    def mapped_tables(self) -> list[np.ndarray]:
        """The same files, mapped: what the bare loop reads."""
        return [np.memmap(f, np.float32, "r", shape=t.shape) for f, t in zip(self._files, self._tables, strict=True)]


def pack(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Arena and shapes of one batch: segments at multiples of 64 bytes."""
    parts: list[bytes] = []
    shapes: list[int] = []
    for ids, indices in zip(batch.ids, batch.indices, strict=True):
        for array in (ids, indices, batch.shape):
            data = array.tobytes()
            parts.append(data + bytes(-len(data) % 64))
            shapes += [array.ndim, *array.shape]
    return np.frombuffer(b"".join(parts), np.uint8), np.array(shapes, np.int64)


class StockGraph(_Traced):
    """safe_embedding_lookup_sparse of every feature and one concat. ``run(k)``: (microseconds of its ops, output)."""

    def __init__(self, tables: Sequence[np.ndarray], batches: Sequence[Batch]):
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            feeds, results, inits = [], [], []
            for f, table in enumerate(tables):
                value = tf.compat.v1.placeholder(tf.float32, [VOCABULARY, WIDTH])
                variable = tf.compat.v1.get_variable(f"t{f}", initializer=value, use_resource=True)
                inits.append((variable, value, table))
                shapes: tuple[list[int | None], ...] = ([None], [None, 2], [2])
                ids, indices, shape = (tf.compat.v1.placeholder(tf.int64, s) for s in shapes)
                feeds += [ids, indices, shape]
                sparse = tf.SparseTensor(indices, ids, shape)
                with tf.name_scope("emb"):
                    results.append(tf.nn.safe_embedding_lookup_sparse(variable, sparse, combiner="mean"))
            with tf.name_scope("emb"):
                output = tf.concat(results, 1)
            session = _session(tf, graph)
            for variable, value, table in inits:
                session.run(variable.initializer, {value: table})
        self._make(tf, session, output, feeds)
        self._values = [
            [v for ids, indices in zip(b.ids, b.indices, strict=True) for v in (ids, indices, b.shape)] for b in batches
        ]

    def run(self, k: int) -> tuple[float, np.ndarray]:
        """Summed op times of the embedding part in microseconds, and the output."""
        return self._run(self._values[k], lambda n: "emb" in n.node_name or "ReadVariableOp" in n.node_name)


def peers(tables: Sequence[np.ndarray], batches: Sequence[Batch]) -> dict[str, Callable[[int], float]]:
    """torch EmbeddingBag and FBGEMM's CPU TBE on the same ids, wall time in microseconds; empty where not installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    torch.set_num_threads(1)
    bags = [torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(t), mode="mean") for t in tables]
    ids = [[torch.from_numpy(i) for i in b.ids] for b in batches]
    rows = int(batches[0].shape[0])
    starts = [[torch.from_numpy(np.searchsorted(x[:, 0], np.arange(rows))) for x in b.indices] for b in batches]

    def run_bags(k: int) -> float:
        with torch.no_grad():
            start = time.perf_counter()
            torch.cat([bag(i, s) for bag, i, s in zip(bags, ids[k], starts[k], strict=True)], 1)
            return (time.perf_counter() - start) * 1e6

    found: dict[str, Callable[[int], float]] = {"embedding_bag": run_bags}
    if importlib.util.find_spec("fbgemm_gpu") is not None:
        found["fbgemm_tbe"] = _fbgemm(torch, tables, ids, starts)
    return found


def _fbgemm(torch: Any, tables: Sequence[np.ndarray], ids: Any, starts: Any) -> Callable[[int], float]:
    package = "fbgemm_gpu.split_table_batched_embeddings_ops_"
    common = importlib.import_module(package + "common")
    training = importlib.import_module(package + "training")
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    layers = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(VOCABULARY, WIDTH, *place) for _ in tables], pooling_mode=common.PoolingMode.MEAN
    )
    for layer, table in zip(layers.split_embedding_weights(), tables, strict=True):
        layer.data.copy_(torch.from_numpy(table))
    merged = []
    for batch_ids, batch_starts in zip(ids, starts, strict=True):
        bases = np.cumsum([0] + [len(i) for i in batch_ids])
        offsets = [s + int(base) for s, base in zip(batch_starts, bases[:-1], strict=True)]
        merged.append((torch.cat(batch_ids), torch.cat([*offsets, torch.tensor([int(bases[-1])])])))

    def run(k: int) -> float:
        with torch.no_grad():
            start = time.perf_counter()
            layers(*merged[k])
            return (time.perf_counter() - start) * 1e6

    return run
