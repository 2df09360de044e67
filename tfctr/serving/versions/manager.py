"""`ModelManager`: the models of a process, their versions and labels, kept as their folders say while requests run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tfctr.errors import NotFoundError, UsageError
from tfctr.serving.version import load_version
from tfctr.serving.versions import memory
from tfctr.serving.versions.clock import Clock, SystemClock
from tfctr.serving.versions.lease import Lease
from tfctr.serving.versions.loading import Loader
from tfctr.serving.versions.model import ServedModel
from tfctr.serving.versions.routes import Route
from tfctr.serving.versions.spec import ModelSpec, ModelStatus, listed

_log = logging.getLogger("tfctr")


class ModelManager:
    """Loads before it unloads, exchanges one pointer, and unloads when the last request is done.

    Every model has a thread that looks at its folder every ``poll_seconds`` and loads there, one version at a time; a
    version that can't be loaded is named with its reason in :meth:`status` and tried again only when its folder
    changes. Thread-safe; :meth:`acquire` never waits for any of it. A context manager.

    Args:
      models: names are distinct.
      clock: time and waiting; for tests.
      loader: makes a version; for tests.
      start: False: nothing is loaded until :meth:`poll`, :meth:`load` or :meth:`start`.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        clock: Clock | None = None,
        *,
        loader: Loader = load_version,
        start: bool = True,
    ) -> None:
        names = [one.name for one in models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"model {twice[0]!r} is there twice")
        self._clock = clock or SystemClock()
        self._models = {one.name: ServedModel(one, self._clock, loader) for one in models}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        if start:
            self.start()

    def start(self) -> None:
        """Starts the threads; once."""
        if self._threads:
            return
        memory.spare_collector()
        for name, model in self._models.items():
            thread = threading.Thread(target=self._follow, args=(model,), name=f"tfctr-versions-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self, model: ServedModel) -> None:
        while not self._stopping.is_set():
            try:
                model.poll()
            except Exception:  # a folder in any state must not end the polling
                _log.exception("model %r: looking for versions failed", model.spec.name)
            if model.spec.poll_seconds == 0:
                return
            self._clock.wait(self._stopping, model.spec.poll_seconds)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until every model's folder was looked at and what could be loaded is; whether :meth:`ready`."""
        for model in self._models.values():
            model.first_look.wait(timeout_s)
        return self.ready()

    def acquire(
        self, model: str, version: int | None = None, label: str | None = None, route: Route | None = None
    ) -> Lease:
        """The version that answers a request, held until the lease is released.

        Args:
          version, label: as the request names it; at most one. None: the model's traffic split, else its default,
            which is the highest version that is loaded by its policy.
          route: field -> a 64-bit hash of the request's first value of it (None: it has none), for the split.

        Raises:
          NotFoundError: no such model, version or label.
          UnavailableError: known, but not loaded (yet, or any more); says why.
        """
        found = self._models.get(model)
        if found is None:
            raise self._unknown(model)
        return found.acquire(version, label, route)

    def status(self, model: str | None = None, *, describe: bool = True) -> list[ModelStatus]:
        """Of one model, or of all. describe: False leaves out what the loaded versions say of themselves."""
        chosen = self._models.values() if model is None else [self._model(model)]
        return [one.status(describe=describe) for one in chosen]

    @property
    def names(self) -> tuple[str, ...]:
        """The models."""
        return tuple(self._models)

    def ready(self) -> bool:
        """Whether every model has a version that answers."""
        return all(one.ready for one in self._models.values())

    def poll(self, model: str | None = None) -> None:
        """Looks at the folders now, on this thread."""
        for one in self._models.values() if model is None else [self._model(model)]:
            one.poll()

    def load(self, model: str, version: int | None = None, *, accept_changed_inputs: bool = False) -> ModelStatus:
        """Loads ``version`` beside those that the policy wants; None: those. Ends what :meth:`unload` and
        :meth:`rollback` have set, of this version or of all.

        accept_changed_inputs: it may take over although it does not take the requests of the version that serves.

        Raises NotFoundError, or VersionRefusedError with the reason why it was not loaded.
        """
        found = self._model(model)
        found.load(version, accept=accept_changed_inputs)
        return found.status(describe=False)

    def unload(self, model: str, version: int | None = None) -> ModelStatus:
        """Unloads a version, or all of them, when its requests are done; until :meth:`load` or :meth:`reload`. Its
        labels go with it (``labels_unloaded``), and come back with it."""
        found = self._model(model)
        found.unload(version)
        return found.status(describe=False)

    def reload(self, model: str, version: int | None = None, *, accept_changed_inputs: bool = False) -> ModelStatus:
        """Loads what is served, or ``version``, anew and exchanges it; a version that is not loaded is loaded as by
        :meth:`load`. Raises as that; the old serves on."""
        found = self._model(model)
        found.load(version, anew=True, accept=accept_changed_inputs)
        return found.status(describe=False)

    def rollback(self, model: str, version: int | None = None) -> ModelStatus:
        """Serves ``version``, or the one before the default; higher ones that are there now are not loaded again by
        themselves, one that appears later is. Raises as :meth:`load`; everything stays as it was."""
        found = self._model(model)
        found.rollback(version)
        return found.status(describe=False)

    def set_label(self, model: str, label: str, version: int | None) -> ModelStatus:
        """Moves a label to a version that is loaded; None: takes it away."""
        found = self._model(model)
        found.set_label(label, version)
        return found.status(describe=False)

    def close(self, drain_s: float = 30.0) -> bool:
        """Takes no more requests, waits for those inside, unloads everything; whether all were answered in time."""
        self._stopping.set()
        drained = True
        for model in self._models.values():
            drained &= model.close(drain_s)
        for thread in self._threads:
            thread.join()
        return drained

    # For metrics and profiles.

    def versions(self, model: str) -> Iterator[tuple[int, Any]]:
        """(number, version) of all of a model that are loaded, each held while the caller looks at it."""
        for number, slot in self._model(model).slots:
            if slot.enter():
                try:
                    yield number, slot.version
                finally:
                    slot.leave()

    def loaded(self) -> set[tuple[str, int]]:
        """(model, version) of all that are loaded."""
        return {(name, number) for name, model in self._models.items() for number, _ in model.slots}

    def groups(self) -> Iterable[tuple[str, int, Mapping[str, Any]]]:
        """(model, version, what its group counted) of all that are loaded."""
        for name in self._models:
            for number, version in self.versions(name):
                yield name, number, version.metrics()

    def statuses(self) -> list[ModelStatus]:
        """Of all models, without what versions say of themselves."""
        return self.status(describe=False)

    def load_failures(self) -> dict[str, int]:
        """Model -> loads that failed since the start."""
        return {name: model.failures for name, model in self._models.items()}

    def _model(self, name: str) -> ServedModel:
        found = self._models.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> NotFoundError:
        return NotFoundError(f"no model {name!r} is served here; there is: {listed(sorted(self._models))}")

    def __enter__(self) -> ModelManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
