"""``tfctr.bisect``: the search of ``graph_opt.bisect``, with the file formats that the command line knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_opt.bisect import bisect_outputs, bisect_speed
from graph_opt.bisect.differences import Tolerance
from graph_opt.bisect.forms import Inputs
from graph_opt.bisect.reproduction import check_folder
from graph_opt.conversion import analyse
from graph_opt.options import ConvertOptions
from tfctr.bundle.sample_inputs import generate
from tfctr.converting import pass_of, with_samples
from tfctr.data import count_rows, npz, read_inputs, take_rows
from tfctr.errors import InputError, UsageError

if TYPE_CHECKING:
    from export.dense.options import DenseOptions
    from graph_opt.bisect import Findings

WHAT = ("outputs", "speed")


def bisect(
    path: str | Path,
    inputs: str | Path | Mapping[str, Any] | None = None,
    *,
    signature: str | None = None,
    what: str = "outputs",
    tolerance: float | None = None,
    out: str | Path | None = None,
    rows: int = 64,
    rounds: int = 60,
    options: ConvertOptions | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
    dense: DenseOptions | str = "tensorflow",
    **fields: Any,
) -> Findings:
    """Finds the pass, the rewrite and the lookup that make a converted model give other outputs, or be slower.

    path: the original SavedModel. inputs: file (.npz, .jsonl) or arrays by input name; None: ``rows`` generated rows.
    signature: default ``serving_default``, or the only one. tolerance: largest |difference| of floats that counts as
    equal; None: that of ``tfctr verify`` (for smaller tables: the limit of their gate). out: new folder for a minimal
    reproduction (outputs only). rounds: of timing. dense: what runs the dense tower, as in
    ``tfctr.convert``; its forms are compared too. options, fields: how it is converted, extra passes included.

    Raises UsageError, InputError (also where the original refuses the inputs).
    """
    options = with_samples(dataclasses.replace(options or ConvertOptions(), **fields))
    if (dense if isinstance(dense, str) else dense.dense) != "tensorflow":
        options = dataclasses.replace(options, dense_passes=(pass_of(dense),))
    if what not in WHAT:
        raise UsageError(f"what={what!r}: expected {' or '.join(WHAT)}")
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance}: expected a number of 0 or more")
    if out is not None:
        check_folder(Path(out))
    name, given = _inputs(path, inputs, signature, rows, options)
    if what == "speed":
        return bisect_speed(path, name, given, options, rounds=rounds, progress=progress, note=note)
    return bisect_outputs(
        path,
        name,
        given,
        options,
        tolerance=Tolerance(atol=tolerance),
        out=None if out is None else Path(out),
        progress=progress,
        note=note,
    )


def _inputs(
    path: str | Path,
    inputs: str | Path | Mapping[str, Any] | None,
    signature: str | None,
    rows: int,
    options: ConvertOptions,
) -> tuple[str, Inputs]:
    from tfctr.core.library import load_op_libraries

    load_op_libraries([str(p) for p in options.op_libraries])
    analysed = analyse(path, options.tags)
    names = list(analysed["signatures"])
    if signature is None:
        signature = "serving_default" if "serving_default" in names or len(names) != 1 else names[0]
    if signature not in names:
        raise UsageError(f"{path}: no signature {signature!r}; it has {', '.join(names) or 'none'}")
    info = analysed["signatures"][signature]
    if inputs is None:
        arrays = generate(info, rows)
    elif isinstance(inputs, Mapping):
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
    else:
        arrays = read_inputs(str(inputs), info, options.label, options.request_column).inputs
    where = inputs if isinstance(inputs, str | Path) else "the inputs"
    wanted = [entry["name"] for entry in info["inputs"]]
    missing, extra = [n for n in wanted if n not in arrays], [n for n in arrays if n not in wanted]
    if missing:
        raise InputError(f"{where}: signature {signature!r} needs the input {missing[0]!r}")
    if extra:
        raise InputError(f"{where}: signature {signature!r} has no input {extra[0]!r}; it has {', '.join(wanted)}")

    def take(request: Mapping[str, Any], chosen: Sequence[int]) -> dict[str, Any]:
        return take_rows(request, info, np.asarray(chosen, np.int64))

    return signature, Inputs(arrays=arrays, count=count_rows(arrays, info), info=info, take=take, write=_write)


def _write(file: Path, arrays: Mapping[str, Any]) -> None:
    with file.open("wb") as out:
        npz.write_npz(out, {name: np.asarray(value) for name, value in arrays.items()})
