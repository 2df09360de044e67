"""A TensorRT engine as the op ``TfctrDenseEngine`` runs it: batches in and out of host memory, any number of rows, from
any number of threads.

Options (``EngineSpec.options["tensorrt"]``, all optional)::

    {"library": "tensorrt_rtx",      # module that built the plan, and its version
     "version": "1.7.1.116",
     "graph_rows": [16, 32, 64],     # numbers of rows that a CUDA graph is recorded for; default: powers of two
     "graphs": true,                 # false: each call is enqueued
     "contexts": 4}                  # calls that run at one time; more wait

A batch is filled up to the next of ``graph_rows`` with copies of its last row, and the outputs are cut; one with more
rows than the plan takes is run in several pieces, which ``describe`` counts. Batches whose other open sizes (user rows,
length of a history) are not those that the plan was tuned for are neither filled up nor recorded. Not yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfctr.engines.spec import ROWS
from tfctr.engines.tensorrt_lane import Lane, Run, Shapes
from tfctr.engines.tensorrt_plan import Plan, PlanTensor, TensorRTError
from tfctr.errors import UsageError

_LEAST_ROWS = 16  # of a graph, where none are named
Given = Sequence[tuple[int, str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the module. graph_rows: ascending; empty: powers of two."""

    library: str = ""
    version: str = ""
    graph_rows: tuple[int, ...] = ()
    graphs: bool = True
    contexts: int = 4

    @staticmethod
    def of(options: Mapping[str, Any], label: str) -> Settings:
        """From JSON. UsageError for an option that does not exist or makes no sense."""
        given = dict(options.get("tensorrt") or {})
        known = {field.name for field in dataclasses.fields(Settings)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(
                f"{label}: unknown option {unknown[0]!r} of tensorrt; there is: {', '.join(sorted(known))}"
            )
        rows = tuple(sorted(int(one) for one in given.pop("graph_rows", None) or ()))
        found = Settings(graph_rows=rows, **given)
        if any(one < 1 for one in rows) or found.contexts < 1:
            raise UsageError(f"{label}: options of tensorrt: graph_rows and contexts count from 1")
        return found


class TensorRTEngine:
    """The ``PythonEngine`` of ``tfctr.engines.native``.

    inputs, outputs: the spec's tensors ({"name", "dtype", "shape"}), in its order. Raises TensorRTError where the plan
    has others.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Mapping[str, Any]],
        outputs: Sequence[Mapping[str, Any]],
        settings: Settings | None = None,
    ):
        self._plan, self._settings = plan, settings or Settings()
        self._inputs = _matched(plan, "inputs", plan.inputs, inputs)
        self._outputs = _matched(plan, "outputs", plan.outputs, outputs)
        self._row_inputs = _with_rows(inputs)
        self._row_outputs = _with_rows(outputs)
        self._most_rows = self._largest_batch()
        self._graph_rows = self._sizes()
        # Number of rows -> shapes that are recorded; ascending.
        best = plan.profiles[0].best
        self._usual = {rows: self._with_rows_of(best, rows) for rows in self._graph_rows or (1,)}
        self._free: list[Lane] = []
        self._count = 0  # lanes, those in use included
        self._ready = threading.Condition()
        self._closed = False
        self._counts = {"calls": 0, "pieces": 0, "split": 0, "waited": 0}

    def run(self, inputs: Given, outputs: Given) -> None:
        """Fills ``outputs`` from ``inputs``, as ``PythonEngine.run`` says."""
        shapes = {one.name: shape for one, (_, _, shape) in zip(self._inputs, inputs, strict=True)}
        rows = self._rows(shapes)
        pieces = self._pieces(rows)
        with self._lane() as lane:
            for first, count in pieces:
                self._run_piece(lane, inputs, outputs, shapes, first, count)
        with self._ready:
            self._counts["calls"] += 1
            self._counts["pieces"] += len(pieces)
            self._counts["split"] += len(pieces) > 1

    @property
    def label(self) -> str:
        return self._plan.label

    def compute(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As :meth:`run`, with arrays by name: for checks, not for requests."""
        arrays = [np.asarray(inputs[one.name], one.dtype, order="C") for one in self._inputs]
        rows = self._rows({one.name: array.shape for one, array in zip(self._inputs, arrays, strict=True)})
        outputs = [np.empty([rows if size < 0 else size for size in one.shape], one.dtype) for one in self._outputs]
        self.run([_given(array) for array in arrays], [_given(array) for array in outputs])
        return {one.name: array for one, array in zip(self._outputs, outputs, strict=True)}

    def warm_up(self) -> None:
        """Runs zeros at every size of ``graph_rows`` (at the sizes that the plan was tuned for, where it has no rows),
        so that contexts, kernels and graphs are there before the first request."""
        for rows in self._graph_rows or (1,):
            with self._lane() as lane:
                run = lane.run_for(self._usual[rows], True)
                for array in run.inputs.values():
                    array.fill(0)
                run.run()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[Plan]:
        """The plan while no call runs; what was recorded is forgotten, as a refit may move weights. Calls wait."""
        with self._ready:
            self._end_lanes()
            yield self._plan

    def describe(self) -> dict[str, Any]:
        """JSON-able; see the keys."""
        with self._ready:
            runs = [run for lane in self._free for run in lane.runs()]  # of those that no call uses at the moment
            return {
                "library": self._plan.library,
                "version": self._plan.version,
                "device": self._plan.gpu.name,
                "target": self._plan.gpu.target,
                "most_rows": self._most_rows,
                "graph_rows": list(self._graph_rows),
                "lanes": self._count,
                "recorded": sum(run.recorded for run in runs),
                "not_recorded": next((run.not_recorded for run in runs if run.not_recorded), ""),
                "refittable": self._plan.refittable,
                **self._counts,
            }

    def close(self) -> None:
        """Gives everything on the GPU back; waits for calls that run."""
        with self._ready:
            self._closed = True
            self._end_lanes()
        self._plan.close()

    def _end_lanes(self) -> None:
        """Waits until no call runs, and ends all lanes; called with ``_ready`` held."""
        while len(self._free) < self._count:
            self._ready.wait()
        while self._free:
            self._free.pop().close()
        self._count = 0

    def _run_piece(
        self,
        lane: Lane,
        inputs: Given,
        outputs: Given,
        shapes: Mapping[str, tuple[int, ...]],
        first: int,
        count: int,
    ) -> None:
        filled = next((rows for rows in self._usual if rows >= count), count)
        usual = self._with_rows_of(shapes, filled)
        if usual == self._usual.get(filled):
            run = lane.run_for(usual, True)
        else:
            run = lane.run_for(self._with_rows_of(shapes, count), False)
        for one, (address, _, shape) in zip(self._inputs, inputs, strict=True):
            if one.name in self._row_inputs:
                _fill(run.inputs[one.name], address, first, count)
            else:
                _fill(run.inputs[one.name], address, 0, shape[0] if shape else 1)
        run.run()
        for one, (address, _, shape) in zip(self._outputs, outputs, strict=True):
            self._give(run, one, address, shape, first, count)

    def _with_rows_of(self, shapes: Shapes, rows: int) -> dict[str, tuple[int, ...]]:
        return {name: (rows, *shape[1:]) if name in self._row_inputs else shape for name, shape in shapes.items()}

    def _give(self, run: Run, one: PlanTensor, address: int, shape: tuple[int, ...], first: int, count: int) -> None:
        array = run.outputs[one.name]
        by_rows = one.name in self._row_outputs
        if (array.shape[1:] if by_rows else array.shape) != (shape[1:] if by_rows else shape):
            raise TensorRTError(
                f"{self._plan.label}: output {one.name!r} has the shape {list(array.shape)}, expected {list(shape)}"
            )
        size = _row_bytes(array) if by_rows else array.nbytes
        ctypes.memmove(address + (first * size if by_rows else 0), array.ctypes.data, size * (count if by_rows else 1))

    @contextlib.contextmanager
    def _lane(self) -> Iterator[Lane]:
        """A lane for one call: one that is free (the last used, whose graphs are there), a new one, or the next to be
        free."""
        lane = self._take() or self._new_lane()
        try:
            yield lane
        finally:
            with self._ready:
                self._free.append(lane)
                self._ready.notify_all()

    def _take(self) -> Lane | None:
        """A free lane; None: the caller makes one, and is counted for it."""
        with self._ready:
            if not self._free and self._count >= self._settings.contexts:
                self._counts["waited"] += 1
            while not self._free and self._count >= self._settings.contexts:
                self._ready.wait()
            if self._closed:
                raise TensorRTError(f"{self._plan.label}: the engine is closed")
            if self._free:
                return self._free.pop()
            self._count += 1
            return None

    def _new_lane(self) -> Lane:
        try:
            return Lane(self._plan, graphs=self._settings.graphs)
        except BaseException:
            with self._ready:
                self._count -= 1
                self._ready.notify_all()
            raise

    def _rows(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return next((shape[0] for name, shape in shapes.items() if name in self._row_inputs), 1)

    def _pieces(self, rows: int) -> list[tuple[int, int]]:
        """(first row, rows) of each run."""
        most = self._most_rows
        if rows <= most or not self._row_inputs:
            return [(0, rows)]
        whole = [one.name for one in self._outputs if one.name not in self._row_outputs]
        if whole:
            raise TensorRTError(
                f"{self._plan.label}: {rows} rows; the plan takes {most}, and output {whole[0]!r} is not one per row, "
                "so the batch can't be run in pieces"
            )
        return [(first, min(most, rows - first)) for first in range(0, rows, most)]

    def _largest_batch(self) -> int:
        most = [
            min((high[0] for name, (_, high) in profile.ranges.items() if name in self._row_inputs), default=1)
            for profile in self._plan.profiles
        ]
        return max(most, default=1)

    def _sizes(self) -> tuple[int, ...]:
        if not self._row_inputs:
            return ()
        most = self._most_rows
        if self._settings.graph_rows:
            return tuple(rows for rows in self._settings.graph_rows if rows <= most)
        sizes, size = [], _LEAST_ROWS
        while size < most:
            sizes.append(size)
            size *= 2
        return (*sizes, most)


def _matched(
    plan: Plan, what: str, tensors: Sequence[PlanTensor], wanted: Sequence[Mapping[str, Any]]
) -> list[PlanTensor]:
    """The plan's tensors in the order of the spec's."""
    known = {one.name: one for one in tensors}
    names = [str(one["name"]) for one in wanted]
    if set(names) != set(known):
        raise TensorRTError(f"{plan.label}: the plan has the {what} {sorted(known)}, expected {sorted(names)}")
    for one in wanted:
        found = known[one["name"]].dtype
        if found != np.dtype(one["dtype"]):
            raise TensorRTError(
                f"{plan.label}: {what[:-1]} {one['name']!r} is {found} in the plan, expected {one['dtype']}"
            )
    return [known[name] for name in names]


def _with_rows(tensors: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(str(one["name"]) for one in tensors if list(one["shape"])[:1] == [ROWS])


def _given(array: np.ndarray) -> tuple[int, str, tuple[int, ...]]:
    return array.ctypes.data, array.dtype.name, array.shape


def _row_bytes(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def _fill(array: np.ndarray, address: int, first: int, count: int) -> None:
    """Rows [first, first + count) of the tensor at ``address`` into the first rows of ``array``; the last one again and
    again into the rest."""
    if not array.shape:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return
    size = _row_bytes(array)
    ctypes.memmove(array.ctypes.data, address + first * size, count * size)
    if count < array.shape[0]:
        array[count:] = array[count - 1]
