"""One try to take a form's tower out of TensorFlow, with a reason instead of an exception where it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from export.cut import cut_tower
from export.onnx.exporter import OnnxTower, to_onnx
from export.reasons import CannotExport
from export.referee import Feeds, Verdict, judge
from export.tower import Tower
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts
from graph_opt.view import GraphView
from tfctr.errors import StrictRefusal

Samples = Callable[[Tower], Sequence[Feeds]]

# A cut can move this often: each time past one node that could not be exported.
_MOVES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """The tower as ONNX, judged; or why there is none.

    reason: "" where there is one; else ``onnx`` and ``verdict`` are None, and ``tower`` too where nothing could be cut
    out. failed_at: the node of the model at which it failed, where there is one. avoided: nodes that a first cut had
    and an export failed at, and why. seconds: of the cut, the export and the comparison.
    """

    signature: str
    tower: Tower | None = None
    onnx: OnnxTower | None = None
    verdict: Verdict | None = None
    reason: str = ""
    failed_at: str = ""
    avoided: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def left_outside(self) -> tuple[str, ...]:
        """What is not part of the tower though it computes on the way to the outputs, as "node: reason"."""
        return self.tower.left_outside if self.tower is not None else ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, for reports."""
        tower = self.tower
        return {
            "signature": self.signature,
            "reason": self.reason,
            "inputs": [dataclasses.asdict(one) for one in tower.inputs] if tower else [],
            "outputs": [dataclasses.asdict(one) for one in tower.outputs] if tower else [],
            "left_outside": list(self.left_outside),
            "onnx": dict(self.onnx.report) if self.onnx else None,
            "notes": list(self.onnx.notes) if self.onnx else [],
            "difference": self.verdict.as_dict() if self.verdict else None,
            "seconds": dict(self.seconds),
        }


def attempt_export(
    item: GraphItem,
    signature: str,
    *,
    samples: Samples | None = None,
    required: bool = False,
    facts: Facts | None = None,
) -> Attempt:
    """Cuts, exports and judges the tower of one form of ``item``; the item is not changed.

    samples: gives real inputs of the tower, to compare on besides random ones. required: raise StrictRefusal with the
    reason where the tower has to stay on TensorFlow.
    """
    facts = facts or Facts(GraphView(item.graph_def))
    found = Attempt(signature=signature)
    avoid: dict[str, str] = {}
    for _ in range(_MOVES):
        found = _Try(item, signature, facts, samples).run(avoid)
        node = found.failed_at
        if not node or node in avoid or found.tower is None or node not in found.tower.nodes:
            break
        avoid[node] = found.reason
    if required and found.reason:
        raise StrictRefusal(f"{signature}: the dense tower stays on TensorFlow: {found.reason}")
    return found


class _Try:
    """One cut with what follows from it."""

    def __init__(self, item: GraphItem, signature: str, facts: Facts, samples: Samples | None) -> None:
        self._item, self._signature, self._facts, self._samples = item, signature, facts, samples
        self._seconds: dict[str, float] = {}
        self._tower: Tower | None = None

    def run(self, avoid: dict[str, str]) -> Attempt:
        try:
            exported, verdict = self._export(avoid)
        except CannotExport as error:
            return self._failed(str(error), error.node)
        except ImportError as error:
            return self._failed(f"{error.name} is not installed (pip install 'tfctr[export]')", "")
        except Exception as error:  # whatever a library raises: the model is served by TensorFlow all the same
            return self._failed(f"the export failed: {type(error).__name__}: {error}"[:400], "")
        return Attempt(
            signature=self._signature,
            tower=self._tower,
            onnx=exported,
            verdict=verdict,
            avoided=dict(avoid),
            seconds=self._seconds,
        )

    def _export(self, avoid: dict[str, str]) -> tuple[OnnxTower, Verdict]:
        with self._timed("cut"):
            self._tower = tower = cut_tower(self._item, self._signature, avoid=avoid, facts=self._facts)
        with self._timed("export"):
            exported = to_onnx(tower)
        given = self._samples(tower) if self._samples else ()
        with self._timed("compare"):
            return exported, judge(tower, exported.model, samples=given)

    def _failed(self, reason: str, node: str) -> Attempt:
        return Attempt(
            signature=self._signature, tower=self._tower, reason=reason, failed_at=node, seconds=self._seconds
        )

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = round(time.perf_counter() - start, 3)
