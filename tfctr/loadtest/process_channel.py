"""Requests to a model in this process: what a server adds to it is the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfctr.errors import TfctrError
from tfctr.loadtest.channel import PLAIN_OK, Answer, Call, Prepared


class ProcessChannel:
    """predict: arrays by input name -> outputs; from any number of threads. close: called at the end."""

    def __init__(self, predict: Callable[[Mapping[str, Any]], object], close: Callable[[], object]) -> None:
        self._predict = predict
        self._close = close

    def connect(self) -> Call:
        predict = self._predict

        def call(request: Prepared, timing: bool) -> Answer:
            try:
                predict(request.payload())
                return PLAIN_OK
            except TfctrError as error:
                return Answer(type(error).__name__, str(error))

        return call

    def close(self) -> None:
        self._close()
