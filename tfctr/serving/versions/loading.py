"""One version, from its folder to what may answer, and out again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfctr.errors import TfctrError
from tfctr.serving.group_options import GroupOptions
from tfctr.serving.versions import differences, scan
from tfctr.serving.versions.lease import Slot

_log = logging.getLogger("tfctr")

Loader = Callable[..., Any]


def load_whole(
    loader: Loader,
    folder: Path,
    number: int,
    options: GroupOptions,
    seen: scan.Fingerprint | None,
    check: Callable[[Any], None],
) -> Any:
    """The version that lies in ``folder``.

    Args:
      seen: the folder when it was last looked at.
      check: raises where the loaded version may not serve.

    Raises:
      TfctrError: the folder changed meanwhile, as the version may be half of one and half of another. What ``loader``
        and ``check`` raise.
    """
    version = loader(folder, number, options)
    try:
        if scan.fingerprint(folder) != seen:
            raise TfctrError(f"{folder}: was written to while it was loaded")
        check(version)
    except BaseException:
        version.close(0.0)
        raise
    return version


def check_requests(name: str, number: int, version: Any, served: Any, *, accept: bool) -> None:
    """Whether requests that ``served`` takes fit ``version``, which is to take over from it.

    accept: where they don't, only the log says so. TfctrError otherwise: nobody should learn it from failed requests.
    """
    missed = differences.of_requests(served.signatures, version.signatures)
    if not missed:
        return
    what = f"version {number} does not take the requests of version {served.number}, which serves: {missed}"
    if not accept:
        raise TfctrError(
            f"{what}. Where that is meant: tfctr admin load {name} {number} --accept-changed-inputs, or "
            "accept_changed_inputs in the configuration"
        )
    _log.warning("model %r: %s", name, what)


def drain(name: str, number: int, slot: Slot, seconds: float) -> bool:
    """Ends a version when its last request is done, or after ``seconds``; whether all were answered."""
    drained = slot.drain(seconds)
    drained &= slot.version.close(seconds if drained else 0.0)
    if not drained:
        _log.warning("model %r: version %d was unloaded with requests inside", name, number)
    return drained
