"""The zoo: every model by name. ``python -m tests.models.zoo FOLDER [NAME ...]`` fills a folder for development."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tests.models import (
    computed_ids,
    keras_onehot,
    keras_sequences,
    legacy_columns,
    legacy_deepctr,
    no_lookup,
    partitioned,
    ragged,
    sparse,
    sparse_v1,
    structure,
    vocabularies,
)
from tests.models.base import BuiltModel, ModelBuilder, read_build, save_build

_MODULES = (
    sparse, sparse_v1, ragged, keras_onehot, keras_sequences, vocabularies, partitioned, computed_ids,
    structure, no_lookup, legacy_columns, legacy_deepctr,
)  # fmt: skip
MODELS: dict[str, ModelBuilder] = {b.name: b for module in _MODULES for b in module.BUILDERS}


def build(name: str, folder: Path | str) -> BuiltModel:
    """The model ``name`` under ``folder/name``: saved there at first use, read back later.

    The first legacy model writes all of them: the subprocess that they need costs seconds to start.
    """
    target = Path(folder) / name
    if not (target / "outputs.npz").exists():
        if MODELS[name].legacy:
            write_legacy(folder)
        else:
            temporary = Path(folder) / f".{name}.{os.getpid()}"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.parent.mkdir(parents=True, exist_ok=True)
            save_build(MODELS[name], temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
    return read_build(target)


def write_legacy(folder: Path | str, names: Sequence[str] = ()) -> None:
    """Runs ``tests.models.legacy`` in a process with tf-keras; its errors are part of the message."""
    command = [sys.executable, "-m", "tests.models.legacy", str(folder), *names]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    run = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr[-4000:]}")


def main(argv: list[str]) -> int:
    """Builds the named models (default: all) under ``argv[0]``, anew."""
    folder, names = Path(argv[0]), argv[1:] or list(MODELS)
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
    if legacy := [name for name in names if MODELS[name].legacy]:
        write_legacy(folder, legacy)
    for name in names:
        built = build(name, folder)
        shapes = {key: value.shape for key, value in built.outputs.items()}
        print(f"{name}: {len(built.inputs)} inputs, outputs {shapes}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
