"""Why a tower can't leave TensorFlow."""

from __future__ import annotations


class CannotExport(Exception):
    """The tower stays on TensorFlow; the message is the reason, for the report. Not an error of the user's."""
