"""What several commands share: opening a model of either kind, its inputs, and how results are printed.

Results go to stdout; progress and remarks go to stderr, so that ``--json`` output can be piped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.console
import rich.table

from tfctr.errors import UsageError

MAX_COUNT = 10_000_000
MAX_THREADS = 1024

if TYPE_CHECKING:
    import numpy as np

    from tfctr.data import InputFile
    from tfctr.serving import ServingSession


def remarks() -> rich.console.Console:
    """The console for people: stderr."""
    return _console(stderr=True)


def results() -> rich.console.Console:
    """The console for results: stdout."""
    return _console(stderr=False)


def _console(stderr: bool) -> rich.console.Console:
    # A pipe or file has no width; rich would take 80 columns and fold names in two.
    stream = sys.stderr if stderr else sys.stdout
    return rich.console.Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 140)


def print_json(value: object) -> None:
    json.dump(finite(value), sys.stdout, indent=2, default=str, allow_nan=False)
    sys.stdout.write("\n")


def finite(value: object) -> object:
    """``value`` with NaN and infinities as the strings "NaN", "Infinity", "-Infinity": JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> rich.table.Table:
    """An empty table; ``right`` names the columns that hold numbers."""
    made = rich.table.Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def add_model_options(parser: argparse.ArgumentParser, *, signature: bool = True) -> None:
    """The options by which every command chooses what it reads of a model."""
    if signature:
        parser.add_argument(
            "--signature", "-s", default=None, metavar="S", help="signature (default: serving_default, or the only one)"
        )
    parser.add_argument(
        "--tags", default=None, metavar="T", help="tags of the MetaGraph, separated by commas (default: serve)"
    )
    parser.add_argument(
        "--op-library",
        action="append",
        default=[],
        metavar="LIB.so",
        help="load this library of custom ops first (repeatable)",
    )


def add_inputs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help=".npz (arrays by input name) or .jsonl (one example per line); without it inputs are generated from "
        "the signature, the tables' sizes and the vocabularies",
    )
    add_label_option(parser)


def add_label_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--label",
        default="label",
        metavar="NAME[=OUTPUT]",
        help="column of the file that holds labels, and the output they belong to (default: label, and the only "
        "output with one number per row)",
    )


def split_label(text: str) -> tuple[str, str | None]:
    """Column and output of ``--label``."""
    name, _, output = text.partition("=")
    if not name or (output == "" and "=" in text):
        raise UsageError(f"--label {text!r}: expected NAME or NAME=OUTPUT, such as click=score")
    return name, output or None


def count(text: str) -> int:
    """Type of an option that counts something: 1 to 10 million."""
    number = int(text)
    if not 1 <= number <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {MAX_COUNT}")
    return number


def threads(text: str) -> int:
    """Type of ``--threads``."""
    number = int(text)
    if not 1 <= number <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {MAX_THREADS}")
    return number


@dataclasses.dataclass(frozen=True)
class Model:
    """A SavedModel or bundle as the commands see it; ``manifest`` has ``signatures`` and ``store`` in either case."""

    path: str
    is_bundle: bool
    manifest: Mapping[str, Any]
    tags: tuple[str, ...]
    op_libraries: tuple[str, ...]

    def signature(self, wanted: str | None) -> str:
        """The signature's name: the wanted one, else serving_default, else the only one."""
        names = list(self.manifest["signatures"])
        if wanted is None:
            wanted = "serving_default" if "serving_default" in names or len(names) != 1 else names[0]
        if wanted not in names:
            raise UsageError(f"{self.path}: no signature {wanted!r}; it has {', '.join(names) or 'none'}")
        return wanted

    def info(self, signature: str) -> Mapping[str, Any]:
        info: Mapping[str, Any] = self.manifest["signatures"][signature]
        return info

    def serve(
        self,
        signature: str,
        threads: int = 1,
        user_features: Sequence[str] = (),
        engine: str | None = None,
        fallback: bool = True,
    ) -> ServingSession:
        import tfctr

        return tfctr.ServingSession(
            self.path,
            signature=signature,
            tags=self.tags,
            intra_op_threads=threads,
            op_libraries=self.op_libraries,
            features=None if self.is_bundle else _features(self.info(signature)),
            user_features=user_features,
            engine=engine,
            fallback=fallback,
        )

    def read_inputs(
        self, file: str, signature: str, label: str = "label", session: ServingSession | None = None, once: bool = False
    ) -> InputFile:
        """Inputs of ``file``; those of users as ``session`` takes them (once), or repeated for every row."""
        from tfctr.data import read_inputs

        info = self.info(signature) if session is None else with_users(self.info(signature), session)
        return read_inputs(file, info, label, once=once)

    def generate(self, signature: str, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
        from tfctr.bundle.sample_inputs import generate

        return generate(self.info(signature), rows, seed)


def _features(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The features of an analysed signature as ``ServingSession`` takes them."""
    like = {entry["name"]: (entry.get("domain") or {}).get("like") for entry in info["inputs"]}
    return [{**feature, "like": like.get(feature["parts"]["values"])} for feature in info["features"]]


def with_users(info: Mapping[str, Any], session: ServingSession) -> Mapping[str, Any]:
    """A signature's entry that says which inputs ``session`` takes once per user."""
    if not session.user_inputs:
        return info
    split = {**(info.get("split") or {}), "row_to_user": session.row_to_user}
    return {**info, "user": {"features": session.user_features, "inputs": session.user_inputs}, "split": split}


def add_user_features_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user-features",
        default="",
        metavar="A,B*",
        help="features that inputs may give once per user, beside those that the bundle declares",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """What runs the dense tower of a bundle."""
    parser.add_argument(
        "--engine",
        choices=("openvino", "tensorrt", "tensorflow"),
        help="what runs the dense tower (default: as the bundle says, or its fallback where that does not run here)",
    )
    parser.add_argument(
        "--no-fallback",
        action="store_true",
        help="exit 2, with the reason, where the engine that the bundle asks for does not run on this machine",
    )


def engine_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``Model.serve`` that these options mean."""
    return {"engine": args.engine, "fallback": not args.no_fallback}


def tower_line(dense: Mapping[str, Any]) -> str | None:
    """``describe()["dense"]`` of a session in one line; None where TensorFlow runs the tower and nothing else was
    asked for."""
    if dense["running"] == dense["asked"] == "tensorflow":
        return None
    line = f"dense tower: {dense['running']} {dense['precision']}"
    if dense["engine"]:
        line += f" ({dense['engine']['version']})"
    return line + (f" instead of {dense['asked']}: {dense['reason']}" if dense["fallback"] else "")


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated option."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_tags(text: str | None) -> tuple[str, ...] | None:
    """The tags of ``--tags``; None without it (a model with one MetaGraph needs no choice)."""
    if text is None:
        return None
    tags = tuple(tag for tag in text.split(",") if tag)
    if not tags:
        raise UsageError("--tags is empty; a SavedModel for serving has the tag 'serve'")
    return tags


def open_model(args: argparse.Namespace, path: str) -> Model:
    """Reads what the commands need to know of ``path``: a bundle's manifest, or an analysis of a plain SavedModel."""
    import tfctr  # noqa: F401 - checks TensorFlow's version and loads the op library
    from tfctr.bundle.reader import is_bundle, read_manifest
    from tfctr.core.library import load_op_libraries

    tags = split_tags(args.tags)
    load_op_libraries(args.op_library)
    import graph_opt
    from graph_opt.saved_model import find

    folder, _ = find(path)
    if is_bundle(folder):
        manifest = read_manifest(folder)
        has = tuple(manifest.get("source", {}).get("tags", ("serve",)))
        if tags is not None and set(tags) != set(has):
            raise UsageError(f"{folder}: no MetaGraph with the tags {','.join(tags)}; there is: {','.join(has)}")
        return Model(str(folder), True, manifest, has, tuple(args.op_library))
    analysed = graph_opt.analyse(path, tags)
    return Model(analysed["path"], False, analysed, tuple(analysed["tags"]), tuple(args.op_library))
