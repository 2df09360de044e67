"""The process of its own that ``build`` starts: ``python -m export.tensorrt.worker GIVEN MADE`` (pickles)."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import onnx

from export.tensorrt.build import Plans, build
from export.tensorrt.library import load
from tfctr.errors import TfctrError


def main(given: str, made: str) -> None:
    request = pickle.loads(Path(given).read_bytes())
    model = onnx.load_from_string(request["model"])
    answer: Plans | tuple[str, str]
    try:
        answer = build(model, request["targets"], request["options"], library=load(request["library"]), isolate=False)
    except TfctrError as error:
        answer = (type(error).__name__, str(error))
    # Written whole or not at all: the caller reads it only if it is there.
    partial = Path(f"{made}.part")
    partial.write_bytes(pickle.dumps(answer))
    partial.rename(made)


if __name__ == "__main__":
    main(*sys.argv[1:])
