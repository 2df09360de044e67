"""``tfctr profile``: a timeline of a model's steps, to look at and to open in Perfetto and TensorBoard."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from tfctr.profiling.timeline.events import Timeline
    from tfctr.profiling.timeline.recording import Recording, Subject

    Arrays = dict[str, np.ndarray]

HELP = "show what a SavedModel or bundle spends its time on, step by step"
DESCRIPTION = """Runs a model and records what each of its operations does and when: a bundle as a ServingSession runs
it, a plain SavedModel as stock TensorFlow does (Session callable, default grappler). Writes into DIR:

  index.html                the page to look at: what dominates, and which option would change it
  trace.json                for ui.perfetto.dev and chrome://tracing
  timeline.json             the numbers behind both (baseline.json: of the baseline)
  plugins/profile/          for TensorBoard: tensorboard --logdir DIR

  tfctr profile bundle/ --baseline model/ --batch 256
  tfctr profile model/ --inputs requests.npz --steps 20 --out slow"""

DEFAULT_ROWS = 256


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="PATH", help="SavedModel or bundle")
    parser.add_argument(
        "--baseline", metavar="OTHER", help="another one, recorded with the same inputs, to compare with"
    )
    common.add_inputs_option(parser)
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="recorded steps (default: 50)")
    parser.add_argument(
        "--batch",
        type=common.count,
        metavar="N",
        help=f"rows per step; of a file, the next N in turn (default: {DEFAULT_ROWS}, or all of a smaller file)",
    )
    parser.add_argument(
        "--threads", type=common.threads, default=1, metavar="N", help="intra-op threads of each model (default: 1)"
    )
    parser.add_argument(
        "--out", default="tfctr_profile", metavar="DIR", help="folder to write (default: tfctr_profile)"
    )
    common.add_engine_options(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    common.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.steps <= common.MAX_COUNT:
        raise UsageError(f"--steps {args.steps}: a profile has 1 to {common.MAX_COUNT} steps")
    out = Path(args.out)
    from tfctr.profiling.timeline import folder

    folder.check_folder(out)
    ours = common.open_model(args, args.path)
    signature = ours.signature(args.signature)
    other = None if args.baseline is None else _baseline(args, ours, signature)
    models = [m for m in (ours, other) if m is not None]
    batches, rows = _batches(args, models, signature)
    recordings = _record(args, models, signature, batches, rows)
    _write(args, out, recordings)
    for one in recordings:
        if not one.timeline.complete:
            raise InputError(f"{one.timeline.path}: {one.timeline.error}; {out} shows the steps before")
    return 0


def _baseline(args: argparse.Namespace, ours: common.Model, signature: str) -> common.Model:
    """The baseline, which has the same signature: else its steps could not get the same inputs."""
    other = common.open_model(args, args.baseline)
    has = list(other.manifest["signatures"])
    if signature not in has:
        raise UsageError(
            f"--baseline {other.path}: no signature {signature!r}, which is profiled of {ours.path}; "
            f"it has {', '.join(has) or 'none'}"
        )
    mine, theirs = ({e["name"]: e for e in m.info(signature)["inputs"]} for m in (ours, other))
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(name), theirs.get(name)
        if not _alike(here, there):
            raise UsageError(
                f"--baseline {other.path}: signature {signature!r} is another one: input {name!r} is "
                f"{_input_words(there)} there and {_input_words(here)} in {ours.path}"
            )
    return other


def _alike(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether what one input takes the other may take: the same dtype, and no size that both fix at another number."""
    if one is None or other is None or one["dtype"] != other["dtype"]:
        return False
    sizes, others = one.get("shape"), other.get("shape")
    if sizes is None or others is None:
        return True
    return len(sizes) == len(others) and all(a == b or a < 0 or b < 0 for a, b in zip(sizes, others, strict=True))


def _input_words(entry: Mapping[str, Any] | None) -> str:
    """ "int64 [?, 2]"."""
    if entry is None:
        return "missing"
    shape = entry.get("shape")
    if shape is None:
        return str(entry["dtype"])
    return f"{entry['dtype']} [{', '.join('?' if size is None or size < 0 else str(size) for size in shape)}]"


def _batches(args: argparse.Namespace, models: Sequence[common.Model], signature: str) -> tuple[list[Arrays], int]:
    """Inputs of the steps, to be taken in turn, and their rows."""
    model = models[-1]
    if args.inputs is None:
        rows = args.batch or DEFAULT_ROWS
        return [model.generate(signature, rows)], rows
    import numpy as np

    from tfctr.data import count_rows, take_rows

    info = model.info(signature)
    arrays = model.read_inputs(args.inputs, signature, common.split_label(args.label)[0]).inputs
    if not all(one.is_bundle for one in models):  # a bundle says itself what it does not take
        _check_inputs(args.inputs, arrays, info)
    try:
        has = count_rows(arrays, info)
        if has == 0:
            raise UsageError(f"{args.inputs}: holds no row")
        rows = args.batch or min(has, DEFAULT_ROWS)
        wanted = min(args.steps, -(-has // rows))
        return [take_rows(arrays, info, np.arange(k * rows, (k + 1) * rows) % has) for k in range(wanted)], rows
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{args.inputs}: parts of a feature that do not fit each other: {error}") from error


_KINDS = {"string": "SUO", "int": "iubO", "uint": "iubO", "float": "fiubO", "bool": "bO"}
"""What of NumPy a model's dtype, less its bits, may be given as."""


def _check_inputs(file: str, arrays: Arrays, info: Mapping[str, Any]) -> None:
    """Stock TensorFlow would convert what is wrong, or fail over it without its name."""
    for entry in info["inputs"]:
        name, dtype, shape = entry["name"], entry["dtype"], entry.get("shape")
        expected = f"the model takes {dtype}{'' if shape is None else f' with {len(shape)} dimensions'}"
        if name not in arrays:
            raise UsageError(f"{file}: no input {name!r}; {expected}")
        value = arrays[name]
        kinds = _KINDS.get(dtype.rstrip("0123456789"), value.dtype.kind)
        if value.dtype.kind not in kinds or (shape is not None and value.ndim != len(shape)):
            raise UsageError(f"{file}: input {name!r} is {value.dtype} with {value.ndim} dimensions; {expected}")


def _record(
    args: argparse.Namespace, models: Sequence[common.Model], signature: str, batches: Sequence[Arrays], rows: int
) -> list[Recording]:
    from tfctr.cli.convert import progress_bar
    from tfctr.profiling.timeline import layers
    from tfctr.profiling.timeline.recording import record, time_steps

    with contextlib.ExitStack() as stack:
        progress, _ = stack.enter_context(progress_bar())
        subjects = [
            stack.enter_context((_bundle if model.is_bundle else _stock)(args, model, signature)) for model in models
        ]
        timed = time_steps(subjects, batches, args.steps, progress)
        recordings = [
            record(subject, batches, rows, args.steps, progress, one)
            for subject, one in zip(subjects, timed, strict=True)
        ]
    found = []
    for model, recording in zip(models, recordings, strict=True):  # engines are closed now, and may be opened anew
        timeline = recording.timeline
        if timeline.complete and any(event.op == layers.ENGINE_OP for event in timeline.events):
            timeline = _with_layers(args, model, signature, batches[0], timeline)
        found.append(dataclasses.replace(recording, timeline=timeline))
    return found


def _with_layers(
    args: argparse.Namespace, model: common.Model, signature: str, inputs: Arrays, timeline: Timeline
) -> Timeline:
    """Asks the engine for its layers in a session of its own: keeping them would slow the recorded steps."""
    from tfctr.profiling.timeline import layers

    with layers.kept(), model.serve(signature, args.threads, **common.engine_of(args)) as session:
        calls = []
        for _ in range(layers.CALLS):  # the first ones are cold
            session.predict(inputs)
            calls.append(layers.layers_of(session.describe()["dense"]))
        told = layers.nearest(timeline, calls)
    if not told:
        return dataclasses.replace(timeline, notes=(*timeline.notes, "the engine tells no times of its layers"))
    return layers.with_layers(timeline, told)


@contextlib.contextmanager
def _stock(args: argparse.Namespace, model: common.Model, signature: str) -> Iterator[Subject]:
    from tfctr.profiling.stock import StockSession
    from tfctr.profiling.timeline.recording import Subject

    session = StockSession(model.path, model.info(signature), model.tags, args.threads)
    try:
        yield Subject(
            title="stock TensorFlow",
            form="stock",
            call=session.predict,
            traced=lambda inputs: session.run_traced(inputs, graphs=True),
            **_about(args, model, signature),
        )
    finally:
        session.close()


@contextlib.contextmanager
def _bundle(args: argparse.Namespace, model: common.Model, signature: str) -> Iterator[Subject]:
    from tfctr.profiling.timeline.recording import Subject

    with model.serve(signature, args.threads, **common.engine_of(args)) as session:
        tower = common.tower_line(session.describe()["dense"])
        yield Subject(
            title="bundle",
            form="bundle",
            call=session.predict,
            traced=lambda inputs: session.run_traced(inputs, graphs=True)[1],
            notes=(tower,) if tower else (),
            **_about(args, model, signature),
        )


def _about(args: argparse.Namespace, model: common.Model, signature: str) -> dict[str, Any]:
    from tfctr.profiling.timeline.provenance import Provenance

    files: Sequence[Mapping[str, Any]] = model.manifest.get("store", {}).get("files", ())
    return {
        "path": model.path,
        "signature": signature,
        "threads": args.threads,
        "provenance": Provenance(model.info(signature), files),
    }


def _write(args: argparse.Namespace, out: Path, recordings: Sequence[Recording]) -> None:
    from tfctr.profiling.timeline import folder, page

    ours, other = recordings[0], recordings[1] if len(recordings) > 1 else None
    written = folder.write_profile(out, ours, other, page.write_page)
    told = page.summary(ours.timeline, other.timeline if other else None)
    if args.json:
        common.print_json({"files": [str(path) for path in written], **told})
        return
    _print(recordings)
    console = common.results()
    for head, text in (("What was slow", told["slow"]), ("What changed", told["changed"] if other else "")):
        if text:
            console.print(f"{head}: {text}", markup=False)
    for text in told["warnings"]:
        console.print(text, markup=False)
    console.print(f"look at {out / folder.PAGE}; open {out / folder.TRACE} in ui.perfetto.dev", markup=False)


def _print(recordings: Sequence[Recording]) -> None:
    numbers = ("steps", "step ms", "untraced ms", "op time ms", "executor and feed ms", "ops", "transfers")
    table = common.table("Median step", "model", *numbers, right=numbers)
    for one in recordings:
        timeline = one.timeline
        step = timeline.median_step()
        if step is None:
            continue
        events = timeline.of_step(step.index)
        sums = {kind: sum(e.self_ns for e in events if e.kind == kind) for kind in ("op", "overhead")}
        untraced = statistics.median(timeline.untraced_ns)
        table.add_row(
            f"{timeline.title} {timeline.path}",
            str(len(timeline.steps)),
            *(f"{ns / 1e6:.3f}" for ns in (step.duration_ns, untraced, sums["op"], sums["overhead"])),
            str(sum(e.kind == "op" for e in events)),
            str(sum(count.transfers + count.strings for count in timeline.transfers)),
        )
    console = common.results()
    console.print(table)
    for one in recordings:
        for note in one.timeline.notes:
            console.print(f"{one.timeline.title}: {note}", markup=False)
