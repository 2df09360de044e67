"""Models that need tf-keras, saved in a process of their own: ``python -m tests.models.legacy OUT_DIR [NAME ...]``.

TensorFlow chooses its Keras when it is imported, so one process cannot write both kinds.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tests.models import legacy_columns, legacy_deepctr
from tests.models.base import ModelBuilder, save_build

MODELS: dict[str, ModelBuilder] = {b.name: b for module in (legacy_columns, legacy_deepctr) for b in module.BUILDERS}


def main(argv: list[str]) -> int:
    """Saves the named models (default: all) under ``argv[0]``."""
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in argv[1:] or MODELS:
        started = time.monotonic()
        temporary = folder / f".{name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        save_build(MODELS[name], temporary)
        shutil.rmtree(folder / name, ignore_errors=True)
        temporary.rename(folder / name)
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
