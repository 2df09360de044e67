"""Why a tower can't leave TensorFlow."""

from __future__ import annotations


class CannotExport(Exception):
    """The tower stays on TensorFlow; the message is the reason, for the report. No error of the user's.

    node: the node of the model at which it fails, where there is one: a cut that leaves it outside may succeed.
    """

    def __init__(self, reason: str, *, node: str = "") -> None:
        super().__init__(reason)
        self.node = node


def first_line(error: Exception) -> str:
    """What a library says, for a reason of one line: its first line, else the kind of the error."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
