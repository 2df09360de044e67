"""What a model remembers of one of its versions."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfctr.serving.versions import scan, spec


@dataclasses.dataclass
class Record:
    """Of one version.

    Attributes:
      state: as ``status`` tells it.
      error: why it was not loaded; "" where it was.
      loaded_at: when it was, Unix time; None while it is not.
      seen, still: its folder at the last look, and whether it was so at the look before.
      loaded, rejected: its folder when it was.
      served: whether it was ever loaded, by this process.
      accepts: whether somebody said that it may take other inputs than the version before.
    """

    state: spec.State = spec.START
    error: str = ""
    loaded_at: float | None = None
    seen: scan.Fingerprint | None = None
    still: bool = False
    loaded: scan.Fingerprint | None = None
    rejected: scan.Fingerprint | None = None
    served: bool = False
    accepts: bool = False

    def told(self) -> dict[str, Any]:
        """What ``VersionStatus`` has of it."""
        return {"state": self.state, "error": self.error, "loaded_at": self.loaded_at}
