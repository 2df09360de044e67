"""The forms in which one signature can be called (as it is, packed, split by user, with an engine; and as these
combine), and running them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.bisect.differences import Outcome, Raised, Tolerance, difference
from graph_opt.bisect.report import Difference
from graph_opt.dense_check import by_check_provider
from graph_opt.finish import finish, write_state
from graph_opt.item import GraphItem, output_names, output_tensors
from graph_opt.saved_model import SavedModelSource
from graph_opt.sessions import ItemSession, plain_config, session_config, what_happened
from graph_opt.signature_info import signature_info
from tfctr.bundle.packing import pack

Arrays = Mapping[str, Any]
PLAIN, DENSE = "plain", "dense"
# Rows beyond which equal users are not looked for: every row counts as a user of its own then.
_MOST_ROWS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a bisection. arrays: by signature input name. count: rows, 0 where the inputs have no batch dimension.
    take: the request that holds some rows of another. write: writes arrays to an .npz file. info: of the signature.
    """

    arrays: dict[str, Any]
    count: int
    info: Mapping[str, Any]
    take: Callable[[Arrays, Sequence[int]], dict[str, Any]]
    write: Callable[[Path, Arrays], None]

    def rows(self, chosen: Sequence[int]) -> Inputs:
        """The inputs that hold rows ``chosen`` only."""
        return dataclasses.replace(self, arrays=self.take(self.arrays, chosen), count=len(chosen))


def forms(item: GraphItem, signature: str) -> dict[str, str]:
    """Label of each form -> its signature, as far as the passes so far have made them; none with an engine that nothing
    here runs.
    """
    found = {PLAIN: signature}
    if signature in item.packed:
        found["packed"] = item.packed[signature]
    split = item.split.get(signature)
    if split is not None:
        found["split"] = split.signature
        if split.signature in item.packed:
            found["split packed"] = item.packed[split.signature]
    for label, name in list(found.items()):
        if name in item.dense and item.dense[name].check_provider:
            dense = item.dense[name].signature
            engine = f"{label} {DENSE}" if label != PLAIN else DENSE
            found[engine] = dense
            if dense in item.packed:
                found[f"{engine} packed"] = item.packed[dense]
    return found


def request(item: GraphItem, signature: str, form: str, inputs: Inputs) -> dict[str, Any]:
    """What ``form`` is fed, by input name of the (unpacked) signature: for a split form, user inputs once per user."""
    split = item.split.get(signature)
    if not form.startswith("split") or split is None:
        return dict(inputs.arrays)
    of_users, row_to_user = users(inputs, split.user_inputs)
    once = inputs.take(inputs.arrays, of_users)
    arrays = {name: once[name] if name in split.user_inputs else value for name, value in inputs.arrays.items()}
    return {**arrays, split.row_to_user: np.asarray(row_to_user, np.int64)}


def feeds(item: GraphItem, signature: str, form: str, inputs: Inputs) -> dict[str, Any]:
    """Graph tensor -> value for one call of ``form``."""
    name = forms(item, signature)[form]
    arrays = request(item, signature, form, inputs)
    if not form.endswith("packed"):
        entries = signature_info(item.signatures[name])["inputs"]
        return {entry["tensor"]: arrays[entry["name"]] for entry in entries}
    inner = next(plain for plain, packed in item.packed.items() if packed == name)
    entries = signature_info(item.signatures[inner])["inputs"]
    by_tensor = {entry["tensor"]: _as(entry["dtype"], arrays[entry["name"]]) for entry in entries}
    arena, shapes, strings = pack([by_tensor[tensor] for tensor in item.feeds(inner)])
    values = {"arena": arena, "shapes": shapes, "strings": strings}
    packed = item.signatures[name]
    return {packed.inputs[key].name: values[key] for key in packed.inputs}


def users(inputs: Inputs, user_inputs: Sequence[str]) -> tuple[list[int], list[int]]:
    """A row of each user, and the user of each row. Users are numbered from the last row on, so that a form that
    ignores ``row_to_user`` gives other numbers.
    """
    if inputs.count > _MOST_ROWS:
        return list(range(inputs.count))[::-1], list(range(inputs.count))[::-1]
    number: dict[bytes, int] = {}
    found: list[int] = []
    of_row = [0] * inputs.count
    for row in reversed(range(inputs.count)):
        taken = inputs.take(inputs.arrays, [row])
        key = b"|".join(_bytes(taken[name]) for name in user_inputs)
        if key not in number:
            number[key] = len(found)
            found.append(row)
        of_row[row] = number[key]
    return found, of_row


def compare_form(
    runner: Runner, form: str, inputs: Inputs, want: Outcome, tolerance: Tolerance
) -> tuple[Difference | None, float, Tolerance]:
    """How ``form`` differs, the drift (``difference``), and the tolerance that it was given; ``want``: the original's.

    As in a conversion, the gate of smaller tables says how far these may move the plain form; all other forms are held
    against that one, over the same tables, and a form with an engine against the form without: where the engine is of
    less than fp32 by the gate that it passed.
    """
    got = runner.run(form, inputs)
    engine = DENSE in form.split()
    base = "split" if engine and form.startswith("split") else PLAIN
    limits = runner.item.dense[forms(runner.item, runner.signature)[base]].limits if engine else None
    if form == PLAIN or tolerance.atol is not None or (tolerance.gate is None and limits is None):
        return *difference(form, got, want, tolerance), tolerance
    if runner.item.mutable_state:  # the base would not start from the same state
        tolerance = tolerance if tolerance.gate is not None else Tolerance(gate=limits)
        return *difference(form, got, want, tolerance), tolerance
    tolerance = Tolerance(gate=limits)
    found, drift = difference(form, got, runner.run(base, inputs), tolerance)
    if found is not None:
        found = dataclasses.replace(found, reason=f"{found.reason}, against the {base} form")
    return found, drift, tolerance


def _bytes(value: Any) -> bytes:
    array = np.asarray(value)
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes() + str(array.shape).encode()


def _as(dtype: str, value: Any) -> Any:
    array = np.asarray(value)
    if dtype == "string":
        return array if array.dtype == object else array.astype(object)
    return array if dtype == "bfloat16" else array.astype(dtype)


class Original:
    """The SavedModel as stock TensorFlow runs it, variables loaded; no optimiser. Use as a context manager."""

    def __init__(self, source: SavedModelSource, item: GraphItem, signature: str, *, optimised: bool = False) -> None:
        self._names, self._tensors = output_names(item, signature), output_tensors(item, signature)
        self._item, self._signature = item, signature
        config = session_config() if optimised else plain_config()
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            with self._session.graph.as_default():
                tf.compat.v1.saved_model.load(self._session, list(source.tags), str(source.path))
        except BaseException:
            self._session.close()
            raise

    def call(self, inputs: Inputs) -> Callable[[], list[Any]]:
        values = feeds(self._item, self._signature, PLAIN, inputs)
        return lambda: list(self._session.run(self._tensors, values))

    def run(self, inputs: Inputs) -> Outcome:
        return attempt(self.call(inputs), self._names)

    def values(self, tensors: Sequence[str], inputs: Inputs) -> list[Any]:
        """Values of any tensors of the graph."""
        return list(self._session.run(list(tensors), feeds(self._item, self._signature, PLAIN, inputs)))

    def __enter__(self) -> Original:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()


class Runner:
    """Runs every form of one signature of an item as it stands, in a fresh session. Use as a context manager.

    scratch: an empty folder of its own, for the mutable state.
    """

    def __init__(
        self, item: GraphItem, signature: str, source: SavedModelSource, scratch: Path, *, optimised: bool = False
    ) -> None:
        self.item = by_check_provider(item)
        self.signature = signature
        finish(self.item)
        restore = None
        if self.item.restore_op:
            scratch.mkdir(parents=True, exist_ok=True)
            restore = str(scratch / "state")
            write_state(self.item, str(source.checkpoint), restore)
        self._session = ItemSession(self.item, restore=restore, optimised=optimised)

    def call(self, form: str, inputs: Inputs) -> Callable[[], list[Any]]:
        """One call of ``form``, ready to be repeated."""
        tensors = output_tensors(self.item, forms(self.item, self.signature)[form])
        values = feeds(self.item, self.signature, form, inputs)
        return lambda: self._session.run(tensors, values)

    def run(self, form: str, inputs: Inputs) -> Outcome:
        names = output_names(self.item, self.signature)
        return attempt(lambda: self.call(form, inputs)(), names)

    def values(self, tensors: Sequence[str], form: str, inputs: Inputs) -> list[Any]:
        return self._session.run(list(tensors), feeds(self.item, self.signature, form, inputs))

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()


def attempt(call: Callable[[], list[Any]], names: Sequence[str]) -> Outcome:
    """Outputs by name, or what the call raised."""
    try:
        return dict(zip(names, call(), strict=True))
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return Raised(what_happened(str(getattr(error, "message", error))))
