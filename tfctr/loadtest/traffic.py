"""The requests of a load test: rows of a file, or generated ones whose ids are as popular as ids of real traffic are.

Generated requests fit the signature as ``tfctr.bundle.sample_inputs`` makes them (ids inside their tables, one to three
values per row); ids, keys and texts are then drawn again from a Zipf law over what the input may hold: a few are in
most requests, most are rare. Equal seeds give equal requests.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.bundle.rows import count_rows, take_rows
from tfctr.bundle.sample_inputs import generate
from tfctr.errors import UsageError
from tfctr.loadtest.fresh_ids import Markers, words

_WIDE = 1 << 30  # ids up to here and beyond: hashed, so that any number is legal
_TEXTS = 1 << 20  # different texts of a text input
_SCATTER = 2_654_435_761  # prime: neighbouring ranks are not neighbouring rows

Array = npt.NDArray[Any]
Request = tuple[dict[str, Array], int, Markers]


@dataclasses.dataclass(frozen=True)
class TrafficOptions:
    """count: different requests, sent in turn. rows: least and most rows of a request, each as likely. zipf: exponent;
    0: every id as likely. unseen: share of ids that no request had before. unseen_inputs: names or patterns of the
    inputs that get them; none: those where any id is legal (hashed ids, texts, keys of embedding variables).
    user_rows: rows of user features; None: as many as the others.
    """

    count: int = 64
    rows: tuple[int, int] = (100, 100)
    zipf: float = 1.05
    unseen: float = 0.0
    unseen_inputs: tuple[str, ...] = ()
    user_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rows[0] <= self.rows[1]:
            raise UsageError(f"requests of {self.rows[0]} to {self.rows[1]} rows: expected 1 <= least <= most")
        if self.count < 1:
            raise UsageError(f"{self.count} different requests: expected at least 1")
        if not 0 <= self.zipf <= 10:
            raise UsageError(f"a Zipf exponent of {self.zipf:g}: expected 0 to 10")
        if not 0 <= self.unseen <= 1:
            raise UsageError(f"a share of unseen ids of {self.unseen:g}: expected 0 to 1")


def generated(info: Mapping[str, Any], options: TrafficOptions) -> list[Request]:
    """info: the signature's entry of a manifest, or what ``model_info`` made of a server's metadata.

    Raises:
      UsageError: unseen ids were asked for and no input takes them; user rows, and no input is known to be a user's.
    """
    if options.user_rows is not None and not (info.get("user") or {}).get("inputs"):
        raise UsageError(
            "--user-rows: nothing says which inputs are the user's; --bundle FOLDER of a bundle with user features does"
        )
    fresh = _fresh_inputs(info, options)
    found = []
    random = np.random.default_rng([options.seed, 1])
    for number in range(options.count):
        rows = int(random.integers(options.rows[0], options.rows[1] + 1))
        seed = options.seed * 1_000_003 + number
        made = generate(info, rows, seed, options.user_rows)
        if options.zipf:
            _zipf(info, made, options.zipf, random)
        markers = Markers()
        for name in fresh:
            _mark(made, name, options.unseen, markers, random)
        found.append((made, rows, markers))
    return found


def of_file(arrays: Mapping[str, Array], info: Mapping[str, Any], options: TrafficOptions, where: str) -> list[Request]:
    """Requests of consecutive rows of ``arrays``, from the start again where they end."""
    if options.user_rows is not None:
        raise UsageError(f"{where}: --user-rows is of generated requests; those of a file have the rows that they have")
    rows = count_rows(arrays, info)
    if rows == 0:
        raise UsageError(f"{where}: holds no row")
    random = np.random.default_rng([options.seed, 1])
    found, first = [], 0
    for _ in range(options.count):
        wanted = int(random.integers(options.rows[0], options.rows[1] + 1))
        found.append((take_rows(arrays, info, (first + np.arange(wanted)) % rows), wanted, Markers()))
        first = (first + wanted) % rows
    return found


def _zipf(info: Mapping[str, Any], made: dict[str, Array], exponent: float, random: np.random.Generator) -> None:
    for entry in info["inputs"]:
        name, domain = entry["name"], entry.get("domain") or {}
        array = made[name]
        if domain.get("kind") == "keys":
            keys = np.unique(array) if array.dtype != object else array.reshape(-1)
            if len(keys):  # those that generate drew are keys of the model
                made[name] = keys[zipf_ranks(len(keys), array.size, exponent, random)].reshape(array.shape)
        elif domain.get("kind") == "ids":
            low, high = _within(array.dtype, int(domain["low"]), int(domain["high"]))
            made[name] = _as(array, low + _scattered(high - low, array.size, exponent, random))
        elif domain.get("kind") == "text" and array.dtype == object:
            made[name] = _as(array, _scattered(_TEXTS, array.size, exponent, random), b"v")


def _within(dtype: np.dtype[Any], low: int, high: int) -> tuple[int, int]:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = max(low, int(limits.min)), min(high, int(limits.max) + 1)
    return low, max(low + 1, min(high, low + _WIDE))


def _scattered(span: int, count: int, exponent: float, random: np.random.Generator) -> npt.NDArray[np.int64]:
    return zipf_ranks(span, count, exponent, random) * _SCATTER % span


def zipf_ranks(span: int, count: int, exponent: float, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """``count`` ranks in [0, span), rank k as likely as (k + 1) ** -exponent, nearly: the inverse of the integral.

    Needs no table, whatever ``span`` is.
    """
    uniform = random.random(count)
    if abs(exponent - 1) < 1e-9:
        ranks = (span + 1.0) ** uniform
    else:
        power = 1 - exponent
        ranks = (((span + 1.0) ** power - 1) * uniform + 1) ** (1 / power)
    return np.clip(ranks.astype(np.int64) - 1, 0, span - 1)


def _as(like: Array, numbers: npt.NDArray[np.int64], prefix: bytes = b"") -> Array:
    if like.dtype != object:
        return numbers.astype(like.dtype).reshape(like.shape)
    made = np.empty(len(numbers), object)
    made[:] = [prefix + word for word in words(numbers)]
    return made.reshape(like.shape)


def _fresh_inputs(info: Mapping[str, Any], options: TrafficOptions) -> list[str]:
    if not options.unseen:
        return []
    entries = [e for e in info["inputs"] if e["dtype"] in ("int64", "string")]
    if options.unseen_inputs:
        chosen = [e["name"] for e in entries if any(fnmatch.fnmatch(e["name"], p) for p in options.unseen_inputs)]
        if not chosen:
            raise UsageError(
                f"--unseen-inputs {','.join(options.unseen_inputs)}: no int64 or string input has such a name; there "
                f"are {', '.join(e['name'] for e in entries) or 'none'}"
            )
        return chosen
    chosen = [e["name"] for e in entries if _takes_any(e)]
    if not chosen:
        raise UsageError(
            "--unseen: every id of this signature has to be in its table, so none can be new; name inputs that take "
            "others with --unseen-inputs"
        )
    return chosen


def _takes_any(entry: Mapping[str, Any]) -> bool:
    domain = entry.get("domain") or {}
    kind = domain.get("kind")
    if entry["dtype"] == "string":
        return bool(kind == "text")
    # Integer keys are those of a hash file, in which others get the default row.
    return bool(kind == "keys" or (kind == "ids" and domain["high"] >= _WIDE))


def _mark(made: dict[str, Array], name: str, share: float, markers: Markers, random: np.random.Generator) -> None:
    array = made[name]
    count = min(array.size, max(1, round(share * array.size)))
    if count == 0:
        return
    array = array.copy()
    places = random.choice(array.size, count, replace=False)
    numbers = markers.take(count)
    array.reshape(-1)[places] = words(numbers) if array.dtype == object else numbers
    made[name] = array


def total_rows(requests: Sequence[Request]) -> float:
    """Mean rows of a request."""
    return sum(rows for _, rows, _ in requests) / len(requests)
