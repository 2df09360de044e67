"""`ServingSession`: a SavedModel or bundle, loaded once and run from any number of threads."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tensorflow.core.protobuf import config_pb2

from tfctr.bundle import naming, reader
from tfctr.bundle.deltas.identity import Version
from tfctr.bundle.deltas.version_folder import VersionReport, advice
from tfctr.core import library
from tfctr.errors import TfctrError, UnavailableError, UsageError
from tfctr.serving import feature_map, live_version, session_runs
from tfctr.serving import loaded as loading
from tfctr.serving.group import call_until, predict_async
from tfctr.serving.group_options import MAX_THREADS, BatchingOptions, GroupOptions
from tfctr.serving.model_folder import find_model
from tfctr.serving.signature_handle import SignatureHandle, as_dict
from tfctr.serving.signature_info import Feature, Input, Output

_DRAIN_S = 30.0
_T = TypeVar("_T")


class ServingSession:
    """Runs one signature of a SavedModel or a bundle.

    A request goes through one C++ call: arrays are packed (or sliced for the graph's own inputs), the graph runs on
    the calling thread with the GIL released, and outputs come back as arrays that own TensorFlow's memory. Thread-safe.

        with tfctr.ServingSession("bundle") as session:
            scores = session.predict({"user_id": ids, "tags": [[3, 5], [], [9]]})["score"]

    Where user features are declared (by the bundle, or here), a request may give them once per user beside many
    candidates; see :meth:`predict`.

    Args:
      path: a SavedModel or bundle folder, or a folder of versions (the highest is taken).
      signature: name of the signature to run.
      tags: tags of the MetaGraph.
      intra_op_threads: threads that one request's kernels may use; 1 = the calling thread only.
      op_libraries: paths of libraries with custom ops that the model needs.
      features: which inputs are the parts of one sparse or ragged feature, as ``graph_opt.analyse`` finds them:
        {"name", "kind", "parts": {role: input name}}; a dense one with "like" holds a number for each value of that
        input (weights). For bundles the manifest says it; for what ``tfctr.keras.export`` wrote, a file in it.
      user_features: names or shell patterns of features and inputs that are the same for all rows of a user, beside
        those that the bundle declares. Their rows are repeated where the graph has no form that takes them once.
      config: a ConfigProto, merged over the session's own (soft placement, inter-op -1, GPU memory that grows).
      device_map: device that nodes ask for ("/GPU:0", "" for none) -> where they go in this session; see
        ``tfctr.serving.executor_config``.
      engine: "openvino", "tensorrt" or "tensorflow" runs the dense tower, whatever the bundle says; None: the bundle's
        own, or its fallback where that does not run on this machine (one warning, and :meth:`describe`).
      fallback: False: no fallback is taken; UsageError with the reason instead.
      table_memory: "mapped": tables lie in the page cache, shared by all processes; "huge_pages": copied to huge pages
        of this process, for faster lookups in large ones; None: as TFCTR_TABLE_MEMORY says, else mapped.
      executors: how many requests may run at once; they share tables and engines, the rest of the model each has for
        itself. With several, requests wait in a queue and run on the executors' threads instead of their callers'.
      batching: requests that come together run together, see :class:`tfctr.BatchingOptions`; None: each by itself.
      queue_limit: requests that may wait; one more is refused.

    Engines are opened and warmed before the constructor returns.

    Raises:
      UsageError: no SavedModel at ``path``, unknown tags, signature, op, op library, device or user feature; an engine
        that the bundle does not have, or that does not run here where no other may.
      CorruptFileError: files of the model are missing or damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        signature: str = "serving_default",
        tags: Sequence[str] = ("serve",),
        intra_op_threads: int = 1,
        op_libraries: Iterable[str | Path] = (),
        features: Iterable[Mapping[str, Any]] | None = None,
        user_features: Iterable[str] = (),
        config: config_pb2.ConfigProto | None = None,
        device_map: Mapping[str, str] | None = None,
        engine: str | None = None,
        fallback: bool = True,
        table_memory: str | None = None,
        executors: int = 1,
        batching: BatchingOptions | None = None,
        queue_limit: int = 1000,
    ):
        if not 1 <= intra_op_threads <= MAX_THREADS:
            raise UsageError(f"intra_op_threads is {intra_op_threads}, expected 1 to {MAX_THREADS}")
        self._path = find_model(Path(path))
        library.load()
        library.load_op_libraries(op_libraries)
        library.check_isa()
        manifest = reader.open_bundle(self._path).manifest if naming.is_bundle(self._path) else None
        self._options = loading.LoadOptions(
            where=str(self._path),
            signature=signature,
            tags=(tags,) if isinstance(tags, str) else tuple(tags),
            intra_op_threads=intra_op_threads,
            features=None if features is None else tuple(features),
            user_features=(user_features,) if isinstance(user_features, str) else tuple(user_features),
            config=config,
            device_map=device_map,
            engine=engine,
            fallback=fallback,
            table_memory=table_memory,
        )
        self._group = _group_options(self._options, executors, batching, queue_limit)
        self._loaded = session_runs.load(self._path, manifest, self._options, self._group)
        self._live = None if manifest is None else live_version.opened(self._path, manifest)
        self._folder: live_version.ModelFolder | None = None  # of a model that was loaded from memory
        self._changing = threading.Lock()  # one change of the version at a time; requests never take it
        self._earlier: Counter[str] = Counter()  # requests of models that are not loaded any more

    def predict(
        self, inputs: Mapping[str, Any], deadline_ms: float | None = None, *, user_inputs: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Runs the signature.

        Args:
          inputs: input name -> array, tensor, nested list or scalar of the input's shape; feature name -> SparseTensor,
            RaggedTensor (or their Value classes), or nested lists, one per row. A name that is both a feature and one
            of its parts means the feature for those, the part for a flat array. Integers are cast where they fit, any
            number where floats are expected.
            Features that :attr:`user_features` lists may have one row for the one user of all B rows of the others; or
            U rows, one per user, with the input :attr:`row_to_user` (int64 [B], values in [0, U)) to say which user
            each row belongs to.
          deadline_ms: milliseconds from now after which nobody wants the answer: the call returns then, whatever runs.
          user_inputs: features and inputs that have one row in this request, beside those of :attr:`user_features`; it
            is repeated for all rows of the others.

        Returns:
          Output name -> np.ndarray (object arrays of bytes for strings), tf.compat.v1.SparseTensorValue or
          RaggedTensorValue.

        Raises:
          InputError: names the input or feature, what came and what was expected; or what the model itself found wrong
            with the values.
          DeadlineError: the time was over; ``stage`` says where. It was not started after its deadline.
          OverloadedError: ``queue_limit`` requests wait already.
          UsageError: the session is closed.
        """
        request = as_dict(inputs)
        loaded = self._open()
        if deadline_ms is not None or self._group is not None or user_inputs:
            return self._queued(lambda handle: handle.predict(request, call_until(deadline_ms, user_inputs))[0])
        outputs: dict[str, Any] = loaded.predictor.predict(request)
        return outputs if loaded.prepared.dense_only else feature_map.assemble(loaded.prepared.outputs, outputs)

    def predict_async(
        self, inputs: Mapping[str, Any], deadline_ms: float | None = None, *, user_inputs: Sequence[str] = ()
    ) -> Future[dict[str, Any]]:
        """As :meth:`predict`, without waiting: a future of the outputs. Cancelling it takes the request out of the
        queue. What is wrong with the inputs themselves is raised here."""
        request = as_dict(inputs)
        return self._queued(lambda handle: predict_async(handle, request, deadline_ms, user_inputs))

    def _queued(self, run: Callable[[SignatureHandle], _T]) -> _T:
        while True:
            loaded = self._open()
            try:
                return run(loaded.runs.handle(loaded))
            except UnavailableError:
                if self._loaded is loaded:
                    raise
                # It was exchanged for another version since it was taken.

    def run_traced(
        self, inputs: Mapping[str, Any], graphs: bool = False
    ) -> tuple[dict[str, Any], config_pb2.RunMetadata]:
        """As :meth:`predict`, with TensorFlow's RunMetadata of this run (op start and end times in microseconds).
        graphs: its partition graphs, too, which costs a copy of them."""
        loaded = self._open()
        outputs, metadata = loaded.predictor.predict_traced(as_dict(inputs), graphs)
        return feature_map.assemble(loaded.prepared.outputs, outputs), config_pb2.RunMetadata.FromString(metadata)

    def apply_deltas(self, deltas: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> VersionReport:
        """Brings the tables (and the graph, where a delta has new dense weights) to the version that ``deltas``, in
        this order, make of the one that is served; in memory, the bundle on disk stays.

        Every request gets the answer of the version of before or of the new one, whole; none waits. Rows only: the
        overlays of all tables are swapped as one. A new graph: its model is loaded beside the old one, which goes when
        its last request is done. Where something fails, the session serves on as it did.

        Returns:
          What changed: ``version``, ``tables``, ``dense``, ``reloaded``, ``elapsed_ms``, ``advice``.

        Raises:
          UsageError: a delta of another model or base, a gap, the wrong order, the same delta twice; this is no bundle,
            or the session is closed.
          CorruptFileError: a damaged or half-copied delta; a file of the bundle that is gone by now.
        """
        start = time.perf_counter()
        paths = [deltas] if isinstance(deltas, str | os.PathLike) else list(deltas)
        if not paths:
            raise UsageError(f"{self._path}: no delta was given")
        with self._changing:
            loaded, live = self._open(), self._live
            if live is None:
                raise UsageError(f"{self._path}: is a plain SavedModel; deltas belong to bundles (tfctr convert)")
            made = live_version.following(live, [Path(one) for one in paths])
            reloaded = "the deltas have another graph or whole files" if made.reload else ""
            if not reloaded and self._group is not None:
                reloaded = "requests that run in parts on several executors get one version only if all change at once"
            if not reloaded and not live_version.swap(loaded.model, live, made.live):
                reloaded = "its graph, of an earlier tfctr, has no node that takes overlays"
            if reloaded:
                self._replace(loaded, made.live)
            self._live = made.live
        return VersionReport(
            path=self._path,
            version=made.live.version,
            tables=made.tables,
            dense=made.dense,
            reloaded=reloaded,
            elapsed_ms=round((time.perf_counter() - start) * 1000, 1),
            advice=advice(made.tables, "the version that tfctr apply-delta makes of them,"),
        )

    def _replace(self, loaded: loading.Loaded, live: live_version.LiveVersion) -> None:
        """Loads another model and serves it from now on."""
        try:
            folder = live_version.ModelFolder(live)
            new = session_runs.load(folder.path, live.manifest, self._options, self._group, live.paths)
            folder.loaded()
        except (TfctrError, OSError) as error:
            kind = type(error) if isinstance(error, TfctrError) else UsageError
            raise kind(
                f"{self._path}: the deltas were not applied, the session serves on as it did: {error}"
            ) from error
        self._loaded, self._folder = new, folder
        loaded.runs.close(_DRAIN_S)
        self._earlier.update(loaded.predictor.requests())
        loaded.tower.close()

    @property
    def version(self) -> Version | None:
        """The version that is served (``base``, ``hash``, ``sequence``, ``deltas``); None for a plain SavedModel."""
        live = self._live
        return None if live is None else live.version

    @property
    def path(self) -> Path:
        """The folder that was loaded."""
        return self._path

    @property
    def signatures(self) -> tuple[str, ...]:
        """Names of the model's signatures, without those that only tfctr and the loader use."""
        return self._loaded.signatures

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors that this signature takes, in order of their names."""
        return self._loaded.prepared.info.inputs

    @property
    def features(self) -> tuple[Feature, ...]:
        """The sparse and ragged features among the inputs."""
        return self._loaded.prepared.features

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What :meth:`predict` returns."""
        return self._loaded.prepared.outputs

    @property
    def packed(self) -> bool:
        """Whether requests reach the graph as one packed arena (bundles) rather than tensor by tensor."""
        return self._loaded.prepared.packed

    @property
    def user_features(self) -> tuple[str, ...]:
        """Features and inputs that a request may give once per user."""
        users = self._loaded.prepared.users
        return users.features if users else ()

    @property
    def user_inputs(self) -> tuple[str, ...]:
        """The inputs behind :attr:`user_features`."""
        users = self._loaded.prepared.users
        return tuple(sorted(users.inputs)) if users else ()

    @property
    def row_to_user(self) -> str | None:
        """Name of the input that says which user row each row belongs to; None where no user features are declared."""
        users = self._loaded.prepared.users
        return users.row_to_user if users else None

    def describe(self) -> dict[str, Any]:
        """What was loaded and how requests have run so far.

        ``path``, ``signature``, ``packed``; ``split``: the form that takes user inputs once {signature, packed,
        user_features, item_side}, None where there is none; ``user_features``, ``row_to_user``; ``devices``: {asked
        {device: nodes}, session, fell_back [{device, nodes, ops}]}; ``requests``: {plain, split, repeated}, those that
        reached the graph. ``repeated`` ones are among the others: their user rows had to be repeated for every
        candidate, which is slower. ``dense``: what runs the dense tower {asked, running: providers, precision,
        fallback: whether that is not what the bundle asks for, reason, isa {built, here}, engine {name, version}, None
        on TensorFlow, buckets: batch sizes with a variant of their own, engines: what each says of itself, calls:
        requests that engines ran}. ``group``: of a session with several executors or batching, see
        ``ServedVersion.describe``; ``requests`` does not count what ran there.
        """
        loaded = self._open()
        counts = dict(self._earlier + Counter(loaded.predictor.requests()))
        counts = {form: counts.get(form, 0) for form in loaded.predictor.requests()}
        version = self.version
        split = loaded.prepared.users.split if loaded.prepared.users else None
        keys = ("signature", "packed", "user_features", "item_side")
        return {
            "path": str(self._path),
            "signature": self._options.signature,
            "packed": loaded.prepared.packed,
            "split": None if split is None else {key: split.get(key) for key in keys},
            "user_features": list(self.user_features),
            "row_to_user": self.row_to_user,
            "devices": loaded.devices,
            "requests": counts,
            "dense": loaded.tower.describe(counts),
            "group": None if loaded.runs.version is None else loaded.runs.version.describe(),
            "version": None if version is None else {"sequence": version.sequence, "hash": version.hash},
        }

    def close(self, drain_s: float = _DRAIN_S) -> bool:
        """Takes no new requests, waits at most ``drain_s`` for those that wait or run in the queue, and gives the
        model's memory back once calls in progress are done. Whether all in the queue were answered. Further calls of
        close do nothing."""
        with self._changing:
            loaded = self._loaded
            if loaded.predictor is None:
                return True
            self._loaded = dataclasses.replace(loaded, model=None, predictor=None)
            drained: bool = loaded.runs.close(drain_s)
            loaded.tower.close()
            if self._folder is not None:
                self._folder.close()
            return drained

    def __enter__(self) -> ServingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> loading.Loaded:
        loaded = self._loaded
        if loaded.predictor is None:
            raise UsageError(f"{self._path}: this ServingSession is closed")
        return loaded


def _group_options(
    options: loading.LoadOptions, executors: int, batching: BatchingOptions | None, queue_limit: int
) -> GroupOptions | None:
    """None where requests run on their callers' threads."""
    group = GroupOptions(
        executors=executors,
        batching=batching,
        queue_limit=queue_limit,
        intra_op_threads=options.intra_op_threads,
        signatures=(options.signature,),
        tags=options.tags,
        features=None if options.features is None else {options.signature: options.features},
        user_features=options.user_features,
        config=options.config,
        device_map=options.device_map,
        engine=options.engine,
        fallback=options.fallback,
        table_memory=options.table_memory,
    )
    return None if executors == 1 and batching is None else group
