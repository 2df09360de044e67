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
      accepts: whether somebody asks for it now although it may take other inputs than the version before; accepted: its
        folder when somebody did.
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
    accepted: scan.Fingerprint | None = None

    def taken(self, now: float) -> None:
        """It was loaded, as its folder was at the last look."""
        self.state, self.error, self.rejected = spec.AVAILABLE, "", None
        self.loaded, self.loaded_at, self.served = self.seen, now, True
        self.accepted, self.accepts = self.seen if self.accepts else self.accepted, False

    def refused(self, why: str, serves: bool) -> None:
        """It was not loaded; serves: what was loaded of it before serves on."""
        self.error, self.rejected = why, self.seen
        self.state, self.accepts = spec.AVAILABLE if serves else spec.END, False

    def told(self) -> dict[str, Any]:
        """What ``VersionStatus`` has of it."""
        return {"state": self.state, "error": self.error, "loaded_at": self.loaded_at}
