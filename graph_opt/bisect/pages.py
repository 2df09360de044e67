"""The texts of a reproduction: its README and the script that runs it."""

from __future__ import annotations

from graph_opt.bisect.differences import Tolerance
from graph_opt.bisect.report import Difference, Findings

_SCRIPT = '''"""Runs the small model of this folder both ways: model/ on stock TensorFlow, bundle/ with tfctr.

    python run.py

Ends with 3 while an output differs (or one side raises), with 0 once they are equal. README.md says what was found.
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

import tfctr
from tfctr.data.npz import read_npz
from tfctr.data.output_files import flatten_outputs

HERE = pathlib.Path(__file__).resolve().parent
CASE = json.loads((HERE / "findings.json").read_text())["reproduces"]


def stock(inputs):
    """Outputs of the original, as stock TensorFlow computes them."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.compat.v1.saved_model.load(session, CASE["tags"], str(HERE / "model"))
        return session.run(CASE["outputs"], {tensor: inputs[name] for name, tensor in CASE["inputs"].items()})


def as_saved_model(inputs):
    """Outputs of the bundle's signature, run as any SavedModel."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, CASE["tags"], str(HERE / "bundle"))
        outputs = meta.signature_def[CASE["signature"]].outputs
        fetches = {name: outputs[name].name if name in outputs else tensor for name, tensor in CASE["outputs"].items()}
        return session.run(fetches, {tensor: inputs[name] for name, tensor in CASE["inputs"].items()})


def served(request):
    """Outputs of the bundle, called as a server calls it (packed inputs; user inputs once per user)."""
    with tfctr.ServingSession(str(HERE / "bundle"), signature=CASE["signature"], tags=CASE["tags"]) as session:
        return flatten_outputs(session.predict(request))


def attempt(call, inputs):
    try:
        return call(inputs), None
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0]}"


def worst(got, want):
    """Largest |difference| and whether it is too much."""
    if got.shape != want.shape or want.dtype.kind not in "fV":
        return 0.0, not np.array_equal(got, want)
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        allowed = 1e-6 + 1e-5 * np.abs(b) if CASE["atol"] is None else CASE["atol"]
        return float(np.max(gap, initial=0.0)), bool(np.any(~(gap <= allowed)))


def compare(way, want, call, inputs):
    """Prints how the outputs of ``call`` differ from ``want``; returns whether they do."""
    got, error = attempt(call, inputs)
    if error or isinstance(want, str):
        print(f"{way}: {error or 'runs'}; stock TensorFlow: {want if isinstance(want, str) else 'runs'}")
        return bool(error) != isinstance(want, str)
    differs = False
    for name, expected in want.items():
        largest, wrong = worst(got[name], expected)
        differs |= wrong
        print(f"{way}: {name} {'DIFFERS' if wrong else 'is equal'}, largest |difference| {largest:.3g}")
        if wrong:
            print(f"  original:  {np.array2string(expected.ravel()[:6], precision=6)}")
            print(f"  converted: {np.array2string(got[name].ravel()[:6], precision=6)}")
    return differs


def main():
    inputs = read_npz(HERE / "inputs.npz")
    request = HERE / "request.npz"
    outputs, error = attempt(stock, inputs)
    want = error or outputs
    differs = compare("bundle as a SavedModel", want, as_saved_model, inputs)
    differs |= compare("bundle as served", want, served, read_npz(request) if request.exists() else inputs)
    return 3 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def script() -> str:
    """``run.py``."""
    return _SCRIPT


def readme(findings: Findings, what: str, shown: Difference, tolerance: Tolerance) -> str:
    """``README.md``: what was found, how to see it."""
    where = [f"- pass: `{findings.culprit}`"]
    if findings.rewrites:
        where.append(f"- rewrites: {_list(findings.rewrites)}")
    if findings.lookups:
        where.append(f"- lookups: {_list(findings.lookups)}")
    if findings.tensor:
        where.append(f"- first tensor with other values: `{findings.tensor}`")
    if findings.rows:
        where.append(f"- rows of the inputs that show it: {', '.join(map(str, findings.rows))}")
    found = findings.difference
    if found is not None:
        where.append(f"- {_difference_words(found)}")
    where += [f"- {note}" for note in findings.notes]
    return "\n".join(
        [
            "# Outputs differ after a conversion",
            "",
            f"Found by `tfctr bisect {findings.path}`, signature `{findings.signature}`. Floats count as equal within "
            f"{tolerance.text()}.",
            "",
            *where,
            "",
            "## See it",
            "",
            "    python run.py",
            "",
            f"runs `model/` ({what} of the model, for stock TensorFlow; embedding tables hold the rows that the inputs "
            "reach, zeros elsewhere) and `bundle/` (the same, converted by this version) on `inputs.npz`, and ends "
            f"with 3 while they differ. It should say: {_difference_words(shown)}.",
            "",
            "To convert `model/` again with the version that is installed:",
            "",
            "    tfctr bisect model/ --inputs inputs.npz",
            "",
            "`findings.json` has all of this for machines.",
            "",
        ]
    )


def _difference_words(found: Difference) -> str:
    row = f", row {found.row}" if found.row is not None else ""
    values = f" (original {found.want}, converted {found.got})" if found.want or found.got else ""
    output = f"output `{found.output}`{row}: " if found.output else ""
    return f"{output}{found.reason}{values}, in the {found.form} form"


def _list(names: tuple[str, ...], limit: int = 8) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
