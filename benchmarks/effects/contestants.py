"""The contestants of one model: conversions, made once each, and sessions over them with what can be counted."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.effects.models import Request, Shape, requests_of
from benchmarks.effects.settings import BURST, ONE_USER, Build, Served
from benchmarks.memory import memory_mb

SIGNATURE = "serving_default"
_FIRST_CALLS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A bundle, or the SavedModel itself. passes: pass name -> its entry in the manifest."""

    path: pathlib.Path
    table_bytes: int
    passes: Mapping[str, Mapping[str, Any]]

    def idle(self, names: tuple[str, ...]) -> str | None:
        """Why the passes ``names`` did nothing here; None where one of them did something."""
        entries = [self.passes[name] for name in names if name in self.passes]
        if not entries or any(entry["fired"] for entry in entries):
            return None
        refused = sorted((r for entry in entries for r in entry["refused"]), key=lambda r: not r["proof_failed"])
        said = [r["reason"] for r in refused]
        said += [note for entry in entries for note in entry["notes"]]
        return said[0] if said else "it finds nothing to do in this model"


class Builds:
    """Conversions of one model, each made when it is first asked for; one that failed fails again."""

    def __init__(self, name: str, folder: pathlib.Path, cache: pathlib.Path) -> None:
        self.name, self._folder, self._cache = name, folder, cache
        self._made: dict[Build | None, Made | Exception] = {}

    @property
    def model(self) -> pathlib.Path:
        return self._folder / "model"

    def has(self, build: Build | None) -> bool:
        """Whether it was made, or tried, before."""
        return build in self._made

    def __call__(self, build: Build | None) -> Made:
        if build not in self._made:
            try:
                self._made[build] = self._stock() if build is None else self._convert(build)
            except Exception as error:  # of any kind: it is told in the rows that need it
                self._made[build] = error
        made = self._made[build]
        if isinstance(made, Exception):
            raise made
        return made

    def _stock(self) -> Made:
        return Made(path=self.model, table_bytes=_variable_bytes(self.model), passes={})

    def _convert(self, build: Build) -> Made:
        import tfctr
        from examples.models import USER_FEATURES

        out = self._folder / f"bundle{len(self._made)}"
        report = tfctr.convert(self.model, out, **build.arguments(USER_FEATURES[self.name], str(self._cache)))
        manifest = report.manifest
        passes = {entry["name"]: entry for entry in manifest["passes"]}
        failed = [entry for entry in passes.values() if entry["status"] == "failed"]
        if failed:
            raise RuntimeError(f"the pass {failed[0]['name']} failed: {failed[0]['error']}")
        size = sum(file["bytes"] for file in manifest["store"]["files"]) + _variable_bytes(report.path)
        return Made(path=report.path, table_bytes=size, passes=passes)


def _variable_bytes(path: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in path.glob("variables/variables.data*"))


@dataclasses.dataclass(kw_only=True)
class Contestant:
    """An open session. call: one timed call, on the next request of the ring. outputs: of the first request."""

    call: Callable[[], object]
    outputs: Mapping[str, np.ndarray]
    ops: int
    transfers: int
    transfer_bytes: int
    table_bytes: int
    rss_mb: float


def open_contestant(
    stack: contextlib.ExitStack, builds: Builds, served: Served, kind: str, ring: list[Request], shape: Shape
) -> Contestant:
    """Loads the session into ``stack`` and counts what one call does."""
    from tfctr.profiling.stock import op_times_us

    made = builds(served.build)
    gc.collect()
    before = memory_mb()["VmRSS"]
    opened = _stock_session(made.path) if served.stock else _session(made.path, builds.name, served, kind)
    session = stack.enter_context(opened)
    for request in ring[:_FIRST_CALLS]:
        outputs = session.predict(request)
    grown = memory_mb()["VmRSS"] - before
    traced = session.run_traced(ring[0])
    traced = traced if served.stock else traced[1]
    crossed = _transfers(made.path, requests_of(builds.name, BURST, shape)[0]) if _two_devices(served) else (0, 0)
    return Contestant(
        call=_burst(session, ring, shape.burst) if kind == BURST else _turns(session, ring),
        outputs=outputs,
        ops=len(op_times_us(traced)),
        transfers=crossed[0],
        transfer_bytes=crossed[1],
        table_bytes=made.table_bytes,
        rss_mb=grown,
    )


def _two_devices(served: Served) -> bool:
    """Elsewhere no node asks for a device, so nothing can cross."""
    return served.build is not None and served.build.two_devices


def _session(path: pathlib.Path, name: str, served: Served, kind: str) -> Any:
    import tfctr
    from examples.models import USER_FEATURES
    from tfctr.serving.executor_config import ExecutorOptions, executor_setups

    placed = executor_setups(ExecutorOptions(dense_device_type="CPU"))[0].arguments() if _two_devices(served) else {}
    return tfctr.ServingSession(
        path,
        user_features=USER_FEATURES[name] if kind == ONE_USER else (),
        executors=served.executors,
        batching=tfctr.BatchingOptions() if served.batching else None,
        table_memory=served.table_memory,
        **{**placed, "intra_op_threads": served.threads},
    )


@contextlib.contextmanager
def _stock_session(path: pathlib.Path) -> Iterator[Any]:
    import graph_opt
    from tfctr.profiling.stock import StockSession

    session = StockSession(str(path), graph_opt.analyse(str(path))["signatures"][SIGNATURE], threads=1)
    with contextlib.closing(session):
        yield session


def _turns(session: Any, ring: list[Request]) -> Callable[[], object]:
    number = 0

    def call() -> object:
        nonlocal number
        number += 1
        return session.predict(ring[number % len(ring)])

    return call


def _burst(session: Any, ring: list[Request], size: int) -> Callable[[], object]:
    number = 0

    def call() -> object:
        nonlocal number
        number += 1
        at = number * size % len(ring)
        waiting = [session.predict_async(request) for request in ring[at : at + size]]
        return [one.result() for one in waiting]

    return call


def _transfers(path: pathlib.Path, request: Request) -> tuple[int, int]:
    """Tensors (strings too) and bytes that cross between devices in one call, from the partition graphs of a stock
    session with two logical CPU devices.
    """
    import tensorflow as tf

    from tfctr.profiling.transfers import count_transfers

    v1 = tf.compat.v1
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        info = v1.saved_model.loader.load(session, ["serve"], str(path)).signature_def[SIGNATURE]
        feeds = {info.inputs[key].name: value for key, value in request.items()}
        session.run([t.name for t in info.outputs.values()], feeds, options, metadata)
    counts = count_transfers(metadata).values()
    return sum(c.transfers + c.strings for c in counts), sum(c.bytes for c in counts)
