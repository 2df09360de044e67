"""Why a tower can't leave TensorFlow."""

from __future__ import annotations


class CannotExport(Exception):
    """The tower stays on TensorFlow; the message is the reason, for the report. No error of the user's.

    node: the node of the model at which it fails, where there is one: a cut that leaves it outside may succeed.
    """

    def __init__(self, reason: str, *, node: str = "") -> None:
        super().__init__(reason)
        self.node = node
