"""How the requests of a ServingSession run when they may wait: through a queue, on one executor or several."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.core import library
from tfctr.serving import loaded as loading
from tfctr.serving.devices import device_report
from tfctr.serving.group_options import GroupOptions
from tfctr.serving.signature_handle import SignatureHandle
from tfctr.serving.version import ServedVersion, load_version


class Runs:
    """The queue behind one loaded model. Thread-safe.

    version: of a session that asked for several executors or batching: all of its requests wait here. Others run on the
    caller's thread, and get a queue of their own (one more thread) with the first request that has a deadline or is
    asynchronous.
    """

    def __init__(self, signature: str, version: ServedVersion | None = None) -> None:
        self.version = version
        self._signature = signature
        self._making = threading.Lock()
        self._group: Any = None if version is None else version.group
        self._handle = None if version is None else version.signature(signature)

    def handle(self, loaded: loading.Loaded) -> SignatureHandle:
        """What runs a request; of the model that this belongs to."""
        if self._handle is None:
            with self._making:
                if self._handle is None:
                    self._group, self._handle = _one_executor(self._signature, loaded)
        return self._handle

    def close(self, drain_s: float) -> bool:
        """No new requests; whether those inside were answered within ``drain_s``."""
        if self.version is not None:
            return self.version.close(drain_s)
        with self._making:
            return self._group is None or bool(self._group.close(int(drain_s * 1e9)))


def load(
    folder: Path,
    manifest: Mapping[str, Any] | None,
    options: loading.LoadOptions,
    group: GroupOptions | None,
    store_paths: Sequence[Path] | None = None,
) -> loading.Loaded:
    """As ``loaded.load``. group: None: requests run on their callers' threads."""
    if group is None:
        made = loading.load(folder, manifest, options, store_paths)
        made.runs = Runs(options.signature)
        return made
    version = load_version(folder, 1, group, manifest=manifest, store_paths=store_paths)
    executors = version.executors
    described: Mapping[str, Any] = {} if manifest is None else manifest["signatures"]
    prepared = executors.prepared[options.signature]
    model = executors.models[0]
    return loading.Loaded(
        model=model,
        predictor=library.native().Predictor(model, prepared.description),
        tower=executors.towers[options.signature],
        definitions=executors.definitions,
        hidden=loading.hidden_signatures(described),
        prepared=prepared,
        devices=device_report(options.where, model.devices(), quiet=True),
        runs=Runs(options.signature, version),
    )


def _one_executor(signature: str, loaded: loading.Loaded) -> tuple[Any, SignatureHandle]:
    prepared = loaded.prepared
    group = library.native().Group([loaded.model], GroupOptions().native())
    handle = SignatureHandle(
        name=signature,
        native=group.signature(signature, prepared.description, False, 0),
        inputs=prepared.info.inputs,
        features=prepared.features,
        outputs=prepared.outputs,
        definition=loaded.definitions[signature],
        packed=prepared.packed,
        dense_only=prepared.dense_only,
    )
    return group, handle
