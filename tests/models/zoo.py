"""The zoo: every model by name. ``python -m tests.models.zoo FOLDER [NAME ...]`` fills a folder for development."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tests.models import (  # noqa: E402
    computed_ids,
    keras_onehot,
    keras_sequences,
    no_lookup,
    partitioned,
    ragged,
    sparse,
    structure,
    vocabularies,
)
from tests.models.base import BuiltModel, ModelBuilder, read_build, save_build  # noqa: E402

_MODULES = (
    sparse, ragged, keras_onehot, keras_sequences, vocabularies, partitioned, computed_ids, structure, no_lookup
)  # fmt: skip
MODELS: dict[str, ModelBuilder] = {b.name: b for module in _MODULES for b in module.BUILDERS}


def build(name: str, folder: Path | str) -> BuiltModel:
    """The model ``name`` under ``folder/name``: saved there at first use, read back later."""
    target = Path(folder) / name
    if not (target / "outputs.npz").exists():
        temporary = Path(folder) / f".{name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        save_build(MODELS[name], temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    return read_build(target)


def main(argv: list[str]) -> int:
    """Builds the named models (default: all) under ``argv[0]``, anew."""
    folder, names = Path(argv[0]), argv[1:] or list(MODELS)
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
        built = build(name, folder)
        shapes = {key: value.shape for key, value in built.outputs.items()}
        print(f"{name}: {len(built.inputs)} inputs, outputs {shapes}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
