"""One model: looks at its folder, loads what its policy wants, exchanges versions, and says who answers."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.errors import NotFoundError, TfctrError, UnavailableError, VersionRefusedError
from tfctr.serving.versions import absence, loading, memory, routes, scan, spec
from tfctr.serving.versions.clock import Clock
from tfctr.serving.versions.lease import Lease, Slot
from tfctr.serving.versions.loading import Loader
from tfctr.serving.versions.record import Record
from tfctr.serving.versions.routes import Route, Routes
from tfctr.serving.versions.spec import ModelSpec, ModelStatus, VersionStatus, listed

_log = logging.getLogger("tfctr")
_ENDED = 16  # versions that are gone and still told of


class ServedModel:
    """Thread-safe: ``acquire`` and ``status`` never wait for a load; changes wait for each other."""

    def __init__(self, model: ModelSpec, clock: Clock, loader: Loader) -> None:
        self.spec = model
        self.first_look = threading.Event()
        self.failures = 0
        self._clock = clock
        self._loader = loader
        self._options = dataclasses.replace(
            model.options,
            op_libraries=(*model.options.op_libraries, *model.op_libraries),
            model_name=model.name,
        )
        self._changing = threading.RLock()
        self._routes = Routes(labels=dict(model.labels))
        self._records: dict[int, Record] = {}
        self._folders: dict[int, Path] = {}
        self._error = "its folder was not looked at yet"
        self._pinned: set[int] = set()  # loaded by hand, beside the policy
        self._unloaded: set[int] = set()  # by hand
        self._skipped: set[int] = set()  # rolled back from: the policy does not see them
        self._closed = False

    # What requests use.

    def acquire(self, version: int | None, label: str | None, route: Route | None) -> Lease:
        """See ``ModelManager.acquire``."""
        while True:
            current = self._routes
            number = version
            if number is None:
                number = current.pick(route) if label is None else self._labelled(current, label)
            slot = None if number is None else current.slots.get(number)
            if slot is None:
                raise self._missing(number, label)
            if slot.enter():
                return Lease(slot)
            if current is self._routes:
                raise UnavailableError(f"model {self.spec.name!r}: version {number} is being unloaded")

    def _labelled(self, current: Routes, label: str) -> int:
        number = current.labels.get(label)
        if number is None:
            raise absence.no_label(self.spec.name, label, current)
        return number

    def _missing(self, number: int | None, label: str | None = None) -> TfctrError:
        name, records = self.spec.name, dict(self._records)
        if number is None:
            return absence.no_default(name, records, self._error)
        return absence.not_loaded(name, number, label, records.get(number), self._routes)

    @property
    def ready(self) -> bool:
        return self._routes.default is not None

    @property
    def slots(self) -> list[tuple[int, Slot]]:
        return sorted(self._routes.slots.items())

    def status(self, *, describe: bool) -> ModelStatus:
        """See ``ModelManager.status``."""
        current, records = self._routes, dict(self._records)
        versions = []
        for number, one in sorted(records.items()):
            slot = current.slots.get(number)
            told = slot.version.describe() if describe and slot is not None else None
            versions.append(VersionStatus(number=number, **one.told(), pinned=number in self._pinned, describe=told))
        return ModelStatus(
            name=self.spec.name,
            versions=tuple(versions),
            labels=dict(current.labels),
            labels_unloaded=dict(current.away),
            default=current.default,
            error=self._error,
        )

    # What changes it.

    def poll(self) -> None:
        """Looks at the folder and does what the policy wants."""
        with self._changing:
            if self._closed:
                return
            first = not self.first_look.is_set()
            try:
                if self._look():
                    self._settle(hurry=first)
            finally:
                self.first_look.set()

    def load(self, version: int | None, *, anew: bool = False, accept: bool = False) -> None:
        """Loads a version beside those of the policy, or all that the policy wants; what was unloaded or rolled back
        from by hand may be loaded again, with its labels. Raises why it could not be loaded.

        anew: what is loaded is loaded again, changed or not. accept: it may take other inputs than the version before.
        """
        with self._changing:
            self._must_look()
            if version is None:
                self._unloaded.clear()
                self._skipped.clear()
            else:
                self._must_be_there(version)
                self._unloaded.discard(version)
                self._skipped.discard(version)
            chosen = set(self._folders) if version is None else {version}
            self._forget_rejections(chosen)
            for number in chosen:
                self._records[number].accepts |= accept
            self._bring_labels_back(chosen)
            if version is not None and not (anew and version in self._wanted()):
                self._pinned.add(version)
            self._settle(hurry=True, again=chosen & (set(self._routes.slots) | self._pinned) if anew else ())
            if version is not None:
                self._pinned &= set(self._routes.slots)
            self._raise_rejection(chosen)
            if not self._routes.slots:
                why = self._error or "its policy wants none of what is there"
                raise NotFoundError(f"model {self.spec.name!r}: nothing was loaded: {why}")

    def unload(self, version: int | None) -> None:
        """Unloads a version, or all, until :meth:`load`; labels of it stand for nothing until then."""
        with self._changing:
            gone = set(self._routes.slots) | set(self._folders) if version is None else {version}
            if version is not None and version not in self._routes.slots:
                raise self._missing(version)
            self._unloaded |= gone
            self._pinned -= gone
            self._take_labels_away(gone)
            self._retire(gone & set(self._routes.slots))

    def rollback(self, version: int | None) -> int:
        """Serves ``version``, or the last one below the default that served (where none did, the next lower one), and
        none that is higher until :meth:`load`, :meth:`reload`, or a version that is new. Returns its number."""
        with self._changing:
            self._must_look()
            current = self._routes.default
            before = [
                (self._records[n].served, n)
                for n in self._folders
                if (current is None or n < current) and self._records[n].rejected is None and n not in self._unloaded
            ]
            if version is None and not before:
                there = listed(sorted(self._folders))
                raise NotFoundError(f"model {self.spec.name!r}: no version before {current}; there is: {there}")
            target = max(before)[1] if version is None else version
            self._must_be_there(target)
            kept = set(self._skipped), set(self._unloaded), set(self._pinned)
            self._skipped = {n for n in self._folders if n > target}
            self._unloaded.discard(target)
            self._pinned = {n for n in self._pinned if n <= target} | {target}
            self._forget_rejections([target])
            self._records[target].accepts = True  # whoever goes back knows what to
            self._load_missing({target}, hurry=True)
            if target not in self._routes.slots:
                self._skipped, self._unloaded, self._pinned = kept
                self._raise_rejection([target])
            self._bring_labels_back({target})
            self._take_labels_away(self._skipped)
            self._settle(hurry=True)
            return target

    def set_label(self, label: str, version: int | None) -> None:
        """Moves the label to a version that is loaded; None: takes it away."""
        spec.check_label(self.spec.name, label)
        with self._changing:
            labels, away = dict(self._routes.labels), dict(self._routes.away)
            known = labels.pop(label, None) is not None or away.pop(label, None) is not None
            if version is not None:
                if version not in self._routes.slots:
                    raise self._missing(version)
                labels[label] = version
            elif not known:
                raise NotFoundError(f"model {self.spec.name!r}: no label {label!r}")
            self._publish(self._routes.slots, labels, away)

    def _take_labels_away(self, numbers: Collection[int]) -> None:
        """Labels of versions that go by hand would be a promise that nobody keeps."""
        current = self._routes
        gone = {label: number for label, number in current.labels.items() if number in numbers}
        left = {label: number for label, number in current.labels.items() if number not in numbers}
        self._publish(current.slots, left, {**current.away, **gone})

    def _bring_labels_back(self, numbers: Collection[int]) -> None:
        current = self._routes
        back = {label: number for label, number in current.away.items() if number in numbers}
        left = {label: number for label, number in current.away.items() if number not in numbers}
        self._publish(current.slots, {**current.labels, **back}, left)

    def close(self, drain_s: float) -> bool:
        """Takes no more requests and unloads everything; whether all had been answered in time."""
        with self._changing:
            self._closed = True
            return self._retire(set(self._routes.slots), drain_s)

    # How.

    def _look(self) -> bool:
        """Reads the folder. False: there is nothing to go by, so what is loaded stays."""
        try:
            found = scan.find_versions(self.spec.base_path)
        except TfctrError as error:
            if str(error) != self._error:
                _log.warning("model %r: %s", self.spec.name, error)
            self._error = str(error)
            return False
        missing = spec.missing(self.spec.policy, found, self.spec.base_path)
        if missing and missing != self._error:
            _log.warning("model %r: %s", self.spec.name, missing)
        self._error = missing
        self._folders = found
        self._skipped &= set(found)
        self._unloaded &= set(found) | set(self._routes.slots)
        for number in found:
            self._records.setdefault(number, Record())
        gone = [n for n in sorted(self._records) if n not in found and n not in self._routes.slots]
        ended = [n for n in gone if self._records[n].state == spec.END and not self._records[n].error]
        for number in set(gone) - set(ended[-_ENDED:]):
            del self._records[number]
        return True

    def _must_look(self) -> None:
        if self._closed:
            raise UnavailableError(f"model {self.spec.name!r}: the server is going down")
        if not self._look():
            raise NotFoundError(f"model {self.spec.name!r}: {self._error}")

    def _must_be_there(self, version: int) -> None:
        if version not in self._folders:
            raise NotFoundError(
                f"model {self.spec.name!r}: no version {version} in {self.spec.base_path}; there is: "
                f"{listed(sorted(self._folders))}"
            )

    def _forget_rejections(self, numbers: Collection[int]) -> None:
        for number in numbers:
            record = self._records[number]
            record.rejected, record.error = None, ""

    def _raise_rejection(self, numbers: Collection[int]) -> None:
        for number in sorted(numbers, reverse=True):
            record = self._records.get(number)
            if record is not None and record.rejected is not None and number not in self._skipped:
                why = f"version {number} was not loaded: {record.error}"
                raise VersionRefusedError(f"model {self.spec.name!r}: {why}")

    def _wanted(self) -> frozenset[int]:
        """What is to be loaded, of what is there and was not rejected."""
        there = {
            n
            for n in self._folders
            if n not in self._skipped and (self._records[n].rejected is None or n in self._routes.slots)
        }
        named = self._pinned | set(self._routes.labels.values())
        if self.spec.traffic is not None:
            named |= {int(name) for name in self.spec.traffic.weights if name.isdecimal()}
        return frozenset((self.spec.policy.wanted(there) | (named & there)) - self._unloaded)

    def _settle(self, *, hurry: bool, again: Collection[int] = ()) -> None:
        """Loads what is wanted, then unloads what is not; what can't be loaded is not wanted any more.

        hurry: what has just appeared is loaded at once, rather than when it stops changing. again: load these anew.
        """
        self._inspect()
        left = set(again)
        while True:
            wanted = self._wanted()
            if self._load_missing(wanted, hurry=hurry, again=left & wanted):
                break
            left = set()
        self._publish(self._routes.slots)
        # A version that still settles, or that nothing is left of on disk, is no reason to unload the one that serves.
        if wanted and wanted <= set(self._routes.slots):
            self._retire(set(self._routes.slots) - wanted)
        for record in self._records.values():
            record.accepts = False  # who asked has been answered

    def _inspect(self) -> None:
        """Whether folders change. A rejected version may be tried again once its folder has changed and then stayed the
        same for one look."""
        for number, folder in self._folders.items():
            record = self._records[number]
            now = scan.fingerprint(folder)
            record.still, record.seen = now == record.seen, now
            if record.rejected is not None and record.still and now != record.rejected:
                record.rejected = None
            if record.error and now == record.loaded:
                record.rejected, record.error = None, ""

    def _load_missing(self, wanted: Collection[int], *, hurry: bool, again: Collection[int] = ()) -> bool:
        """Loads those of ``wanted`` that are not, or whose folder changed. False: one of them was rejected."""
        accepted = True
        for number in sorted(wanted, reverse=True):
            record, folder = self._records[number], self._folders[number]
            if number not in self._routes.slots:
                # The manifest of a bundle says what belongs to it; files of others are complete when nobody writes.
                due = hurry or record.still or naming.is_bundle(folder)
            else:
                changed = record.seen not in (record.loaded, record.rejected)
                due = number in again or (changed and record.still)
            if due and not self._load_one(number, folder, record):
                accepted = False
        return accepted

    def _load_one(self, number: int, folder: Path, record: Record) -> bool:
        """Loads and publishes one version, in place of the one of this number where there is one."""
        old = self._routes.slots.get(number)
        if old is None:
            record.state = spec.LOADING
        try:
            version = loading.load_whole(
                self._loader, folder, number, self._options, record.seen, lambda made: self._check(number, made, record)
            )
        except Exception as error:  # whatever a model does when it is loaded, the others serve on
            record.refused(" ".join(str(error).split()) or type(error).__name__, serves=old is not None)
            self.failures += 1
            _log.warning("model %r: version %d was not loaded: %s", self.spec.name, number, record.error)
            return False
        record.taken(self._clock.time())
        self._publish({**self._routes.slots, number: Slot(version)})
        _log.info("model %r: version %d is available", self.spec.name, number)
        if old is not None:
            loading.drain(self.spec.name, number, old, self.spec.drain_seconds)
            del old
            memory.trim()
        return True

    def _check(self, number: int, version: Any, record: Record) -> None:
        """Raises where the version is to answer in place of one whose requests it does not take."""
        slots, default = self._routes.slots, self._routes.default
        if default is not None and self._default({*slots, number}) == number:
            accept = self.spec.accept_changed_inputs or record.accepts or record.accepted == record.seen
            loading.check_requests(self.spec.name, number, version, slots[default].version, accept=accept)

    def _default(self, numbers: Collection[int]) -> int | None:
        """Which of them answers requests that name none."""
        visible = set(numbers) - self._skipped
        return max(self.spec.policy.wanted(visible) or visible, default=None)

    def _publish(
        self, slots: Mapping[int, Slot], labels: Mapping[str, int] | None = None, away: Mapping[str, int] | None = None
    ) -> None:
        """Exchanges what requests see, as a whole. labels, away: None: as they are."""
        labels = self._routes.labels if labels is None else labels
        traffic = self.spec.traffic
        self._routes = Routes(
            slots=dict(slots),
            default=self._default(slots),
            labels=dict(labels),
            away=self._routes.away if away is None else dict(away),
            shares=() if traffic is None else routes.shares(traffic, labels, slots),
            field="" if traffic is None else traffic.field,
        )

    def _retire(self, numbers: Collection[int], drain_s: float | None = None) -> bool:
        """Unloads these; whether all requests had been answered in time."""
        if not numbers:
            return True
        going = {n: slot for n, slot in self._routes.slots.items() if n in numbers}
        self._publish({n: slot for n, slot in self._routes.slots.items() if n not in numbers})
        drained = True
        while going:
            number, slot = going.popitem()
            record = self._records[number]
            record.state = spec.UNLOADING
            seconds = self.spec.drain_seconds if drain_s is None else drain_s
            drained &= loading.drain(self.spec.name, number, slot, seconds)
            record.state, record.loaded, record.loaded_at = spec.END, None, None
            del slot
        memory.trim()
        return drained
