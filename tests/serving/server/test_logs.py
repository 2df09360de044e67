"""Logs: one JSON object per line, rate limited; writing that fails never reaches a request."""

import io
import json
import logging
import os
import sys

import pytest

from tfctr.errors import UsageError
from tfctr.serving.server import logs
from tfctr.serving.server.config import LogsConfig
from tfctr.serving.server.logs import RequestLog, TokenBucket

FAILED = {"stage": "queue", "message": "waited 51 ms", "rows": 3, "timing": None}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def answer(log: RequestLog, code: str = "DEADLINE_EXCEEDED", seconds: float = 0.0513, details=FAILED) -> None:
    if log.wants(code, seconds):
        log.answered("grpc", "tfs", "Predict", "ranker", 3, code, seconds, "id-1", details)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_failed_and_slow_requests_get_a_line():
    stream = io.StringIO()
    log = RequestLog(LogsConfig(slow_ms=100), stream=stream)
    answer(log)
    answer(log, "OK", 0.05)
    answer(log, "OK", 0.2, {"timing": {"queue": 5}, "stage": "", "message": "", "rows": 0})
    answer(log, "INTERNAL")
    log.close()
    failed, slow, internal = lines(stream)
    assert failed.pop("time").endswith("Z")
    assert failed == {
        "level": "warning", "event": "request", "request_id": "id-1", "transport": "grpc", "api": "tfs",
        "method": "Predict", "model": "ranker", "version": 3, "code": "DEADLINE_EXCEEDED", "ms": 51.3, "stage": "queue",
        "message": "waited 51 ms", "rows": 3,
    }  # fmt: skip
    assert slow["event"] == "slow request" and slow["timing"] == {"queue": 5} and "stage" not in slow
    assert internal["level"] == "error"


def test_all_requests_on_demand_and_levels():
    stream = io.StringIO()
    log = RequestLog(LogsConfig(requests="all", level="warning"), stream=stream)
    answer(log, "OK", 0.001)  # info: under the level
    answer(log)
    log.event("version loaded", model="ranker")
    log.event("version rejected", level=logging.ERROR, model="ranker", reason="x" * 5000)
    log.close()
    assert [line["event"] for line in lines(stream)] == ["request", "version rejected"]
    assert len(lines(stream)[1]["reason"]) < 2100


def test_what_is_over_the_rate_is_counted():
    stream, clock = io.StringIO(), Clock()
    log = RequestLog(LogsConfig(lines_per_second=5), stream=stream, clock=clock)
    for _ in range(100):
        answer(log)
    clock.now += 1
    answer(log)
    log.event("events are never left out")
    log.close()
    written = lines(stream)
    assert len(written) == 10 + 1 + 1
    assert written[10]["left_out"] == 90 and log.dropped == {"rate": 90, "behind": 0, "failed": 0}


def test_the_rate_survives_a_clock_that_goes_back():
    clock = Clock()
    bucket = TokenBucket(1, clock)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now -= 50
    assert not bucket.take()
    clock.now += 1
    assert bucket.take() and not bucket.take()


def test_odd_values_are_written_as_text():
    stream = io.StringIO()
    log = RequestLog(stream=stream)
    answer(log, details={"message": 'line\nbreak "quoted" \udcff', "rows": 10**30, "stage": b"\xff"})
    log.close()
    assert len(stream.getvalue().splitlines()) == 1 and lines(stream)[0]["rows"] == 10**30


def test_a_full_disk_drops_lines_and_nothing_else():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    log = RequestLog(LogsConfig(file="/dev/full"))
    for _ in range(3):
        answer(log)
    log.event("still here")
    log.close()
    assert log.dropped["failed"] == 4


def test_a_closed_stderr_drops_lines_and_nothing_else(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    log = RequestLog(stream=Closed())
    answer(log)
    log.close()
    assert log.dropped["failed"] == 1
    gone = io.StringIO()
    monkeypatch.setattr(sys, "stderr", gone)
    log = RequestLog()
    gone.close()
    answer(log)
    log.close()
    assert log.dropped["failed"] == 1


def test_a_writer_that_is_behind_drops_and_counts(monkeypatch):
    monkeypatch.setattr("tfctr.serving.server.logs.WAITING_LINES", 1)
    log = RequestLog(LogsConfig(lines_per_second=1000), stream=io.StringIO())
    log._writer.stop()  # a disk that does not answer
    for _ in range(5):
        answer(log)
    assert log.dropped["behind"] == 4
    log._writer.start()
    log.close()


def test_a_file_that_was_rotated_is_opened_anew(tmp_path):
    path = tmp_path / "serve.log"
    sink = logs._handler(LogsConfig(file=str(path)), None)
    for word in ("one", "two"):
        sink.handle(logging.LogRecord(logs.LOGGER, logging.INFO, "", 0, word, None, None))
        path.rename(tmp_path / word)
    sink.close()
    assert "one" in (tmp_path / "one").read_text() and "two" in (tmp_path / "two").read_text()
    with pytest.raises(UsageError, match="log file can't be opened"):
        RequestLog(LogsConfig(file=str(tmp_path / "no" / "serve.log")))


def test_libraries_log_here_too_while_the_server_lives():
    stream = io.StringIO()
    log = RequestLog(stream=stream)
    log.take_over()
    logging.getLogger("uvicorn.error").error("oh %s", "no")
    log.close()
    logging.getLogger("uvicorn.error").propagate = True
    (line,) = lines(stream)
    assert line["event"] == "oh no" and line["logger"] == "uvicorn.error"
    assert not logging.getLogger("uvicorn.error").handlers
