"""The process that turns traces into files, at the lowest priority: nothing of it takes Python's lock, or a processor
that is wanted, from the server, and it has no GPU. It ends with its server, or when it had nothing to do for a while.

Messages on stdin: a header (``HEADER``), JSON of the trace, RunMetadata, and RunMetadata with the graph: for the first
of a form, whose JSON then has ``about``, too. Answers on stdout, one line of JSON each: {"file"} or {"error"}.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import struct
import time
from typing import IO, Any

HEADER = struct.Struct("<QQQ")  # bytes of each part
IDLE_SECONDS = 300.0
_NICER = 9  # after the imports, which run at 10: with 19 they would not end where all processors are busy
_PAGE_EVERY_SECONDS = 10.0  # while traces keep coming
MOST_FORMS = 64


def serve(stdin: IO[bytes], stdout: IO[bytes], idle_seconds: float = IDLE_SECONDS) -> None:
    """Answers until ``stdin`` ends, or was silent for ``idle_seconds``."""
    from tfctr.serving.profiles import trace_files

    forms: dict[int, tuple[bytes, dict[str, Any]]] = {}  # graph, and what is known about the signature
    page_error = ""
    page_at = 0.0
    while _ready(stdin, idle_seconds):
        message = _read(stdin)
        if message is None:
            return
        head, metadata, graph = message
        if "about" in head:
            forms[head["form"]] = graph, head.pop("about")
            while len(forms) > MOST_FORMS:
                forms.pop(next(iter(forms)))
        answer: dict[str, Any] = {}
        timeline = None
        try:
            timeline = trace_files.timeline_of(head, metadata, *forms.get(head["form"], (b"", {})))
            answer["file"] = trace_files.write(head, timeline).name
        except Exception as error:  # whatever is wrong with one trace, the next may be written
            answer["error"] = f"{type(error).__name__}: {error}"
        if page_error:
            answer["page_error"] = page_error
        stdout.write(json.dumps(answer).encode() + b"\n")
        stdout.flush()
        # The page of the latest: when nothing waits, or now and then.
        if timeline is not None and (not _ready(stdin, 0) or time.monotonic() - page_at > _PAGE_EVERY_SECONDS):
            page_at, page_error = time.monotonic(), trace_files.write_page(head, timeline)


def _ready(stdin: IO[bytes], seconds: float) -> bool:
    return bool(select.select([stdin], [], [], seconds)[0])


def _read(stdin: IO[bytes]) -> tuple[dict[str, Any], bytes, bytes] | None:
    header = _exactly(stdin, HEADER.size)
    if len(header) < HEADER.size:
        return None
    parts = [_exactly(stdin, size) for size in HEADER.unpack(header)]
    return json.loads(parts[0]), parts[1], parts[2]


def _exactly(stdin: IO[bytes], size: int) -> bytes:
    """Unbuffered pipes give what they have; less only at the end."""
    got = bytearray()
    while len(got) < size:
        piece = stdin.read(size - len(got))
        if not piece:
            break
        got += piece
    return bytes(got)


def main() -> None:
    """What the server starts (writer_process.py)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    importlib.import_module("tfctr.serving.profiles.trace_files")
    os.nice(_NICER)
    serve(os.fdopen(os.dup(0), "rb", buffering=0), answers)
