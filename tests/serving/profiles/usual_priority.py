"""The process that writes traces, with the priority of its server: at its own it gets no turn on a machine whose
processors are all busy, and tests wait for it.
"""

import pytest

from tfctr.serving.profiles import writer_process

COMMAND = writer_process._RUN


@pytest.fixture(autouse=True)
def writers_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from tfctr.serving.profiles import writer; writer._NICER = 0; writer.main()"
    monkeypatch.setattr(writer_process, "_RUN", code)
