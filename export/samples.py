"""What a tower is fed in service: the model's own form is run on samples, up to the tower's inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from export.feeds import Sizes, random_feeds
from export.tower import Tower
from export.tower_session import sizes_differ
from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.recheck import feeds_of, inputs_of
from graph_opt.recheck_users import split_feeds, user_cases
from graph_opt.sessions import ItemSession, what_happened
from graph_opt.table_gate import GENERATED_ROWS, describe_item, gate_inputs, saved_state

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundarySamples:
    """One batch at a tower's boundary. feeds: arrays by input name. labels: [rows], None where there are none;
    label_output: the output they belong to (None: the only one with one number per row). told: where the numbers come
    from and what that means, one line for people.
    """

    feeds: Mapping[str, Array]
    labels: Array | None = None
    label_output: str | None = None
    told: str = ""

    def rows(self, tower: Tower) -> int:
        """Rows of the batch: of the first input that is not of users and has open rows; 1 where there is none."""
        for one in tower.inputs:
            if one.side != "user" and one.shape and one.shape[0] is None:
                return len(self.feeds[one.name])
        return 1

    def take(self, tower: Tower, rows: int) -> dict[str, Array]:
        """The first ``rows`` rows, repeated from the start where there are not as many; users stay whole."""
        found = {}
        for one in tower.inputs:
            array = self.feeds[one.name]
            if one.side != "user" and one.shape and one.shape[0] is None and len(array):
                array = array[np.arange(rows) % len(array)]
            found[one.name] = np.ascontiguousarray(array)
        return found


class Sampler:
    """Gives the samples of any tower of one item. Use as a context manager: it holds one session over the item.

    The samples of ``options`` with their labels, else generated inputs; where the model refuses those, random numbers
    at the tower's inputs.
    """

    def __init__(self, item: GraphItem, options: ConvertOptions) -> None:
        self._item, self._options = item, options
        self._stack = contextlib.ExitStack()
        self._session: ItemSession | None = None
        self._ready: GraphItem | None = None
        self._described: dict[str, Any] = {}

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, tower: Tower) -> BoundarySamples:
        """The inputs of ``tower`` as its form computes them."""
        session, ready = self._open()
        try:
            feeds, labels, told = self._inputs(ready, tower.signature)
            values = session.run([one.source for one in tower.inputs], dict(feeds))
        except (tf.errors.OpError, ValueError, TypeError) as error:
            happened = what_happened(str(getattr(error, "message", error)))
            return _random(tower, f"the model refuses {self._what()} ({happened})")
        arrays = {one.name: np.asarray(value) for one, value in zip(tower.inputs, values, strict=True)}
        wanted = self._options.label_output
        known = wanted if wanted in [one.name for one in tower.outputs] else None
        return BoundarySamples(feeds=arrays, labels=labels, label_output=known, told=told)

    def _open(self) -> tuple[ItemSession, GraphItem]:
        if self._session is None or self._ready is None:
            self._ready = self._item.copy()
            finish(self._ready)
            self._described = describe_item(self._item)
            restore = self._stack.enter_context(saved_state(self._item))
            self._session = self._stack.enter_context(ItemSession(self._ready, restore=restore))
        return self._session, self._ready

    def _what(self) -> str:
        return "generated inputs" if self._options.read_samples is None else str(self._options.samples_path)

    def _inputs(self, ready: GraphItem, form: str) -> tuple[Mapping[str, Any], Array | None, str]:
        """(feeds of the form by graph tensor, labels, where they come from)."""
        name = next((n for n, split in self._item.split.items() if split.signature == form), form)
        given = gate_inputs(self._described, (name,), self._options)
        labels = given.labels.get(name)
        if name == form:
            return feeds_of(ready, name, given.inputs[name]), labels, given.told
        info, split = self._described[name], self._item.split[name]
        options = dataclasses.replace(self._options, sample_rows=GENERATED_ROWS)
        samples = None if options.read_samples is None else inputs_of(info, options, name)
        cases = user_cases(info, split, options, samples)
        if not cases:
            raise ValueError("they have no rows")
        return split_feeds(ready, form)(cases[0].split), labels, given.told


def _random(tower: Tower, why: str) -> BoundarySamples:
    sizes = Sizes(rows=GENERATED_ROWS, user_rows=3, distinct=sizes_differ(tower))
    told = f"random numbers at the tower's inputs, {GENERATED_ROWS} rows, which say little about real requests: {why}"
    return BoundarySamples(feeds=random_feeds(tower, sizes), told=told)


def batches(samples: BoundarySamples, tower: Tower, sizes: tuple[int, ...]) -> Iterator[dict[str, Array]]:
    """The samples cut to each of ``sizes`` rows, then as they are."""
    for rows in sizes:
        yield samples.take(tower, rows)
    yield {name: np.ascontiguousarray(array) for name, array in samples.feeds.items()}
