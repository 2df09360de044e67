"""What a request is told that asks for a version which does not answer."""

from __future__ import annotations

from collections.abc import Mapping

from tfctr.errors import NotFoundError, TfctrError, UnavailableError
from tfctr.serving.versions import spec
from tfctr.serving.versions.record import Record
from tfctr.serving.versions.routes import Routes
from tfctr.serving.versions.spec import listed


def no_label(name: str, label: str, current: Routes) -> TfctrError:
    """There is no label of this name, or its version was unloaded."""
    there = listed(sorted(current.labels))
    number = current.away.get(label)
    if number is None:
        return NotFoundError(f"model {name!r}: no label {label!r}; there is: {there}")
    return UnavailableError(
        f"model {name!r}: label {label!r} stands for version {number}, which was unloaded by hand; there is: {there}"
    )


def no_default(name: str, records: Mapping[int, Record], folder_error: str) -> TfctrError:
    """The model has no version that answers requests which name none. folder_error: why its folder is no help."""
    why = [f"version {n}: {one.error}" for n, one in sorted(records.items()) if one.error]
    why += [f"version {n} is being loaded" for n, one in sorted(records.items()) if one.state == spec.LOADING]
    why += [folder_error] if folder_error else []
    return UnavailableError(f"model {name!r} is not available: {'; '.join(why) or 'no version is loaded'}")


def not_loaded(name: str, number: int, label: str | None, record: Record | None, current: Routes) -> TfctrError:
    """This version, which the request names (or its label), is not loaded."""
    who = f"version {number}" if label is None else f"label {label!r} stands for version {number}, which"
    if record is None:
        there = listed(sorted(current.slots))
        if label is None:
            return NotFoundError(f"model {name!r}: no version {number}; there is: {there}")
        return NotFoundError(f"model {name!r}: {who} is not there; there is: {there}")
    why = f": {record.error}" if record.error else ""
    return UnavailableError(f"model {name!r}: {who} is not available ({record.state}{why})")
