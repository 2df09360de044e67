"""`ServingSession`: a SavedModel or bundle, loaded once and run from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from tfctr.bundle import input_features, naming, reader
from tfctr.core import library
from tfctr.errors import CorruptFileError, InputError, UsageError
from tfctr.serving import dense_form, feature_map
from tfctr.serving import user_inputs as users
from tfctr.serving.devices import device_report
from tfctr.serving.model_folder import find_model, load_model
from tfctr.serving.signature_info import Feature, Input, Output, SignatureInfo, read_signature

_MAX_THREADS = 1024  # the memory of TensorFlow's pools grows with the square of it
_INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")


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
    ):
        if not 1 <= intra_op_threads <= _MAX_THREADS:
            raise UsageError(f"intra_op_threads is {intra_op_threads}, expected 1 to {_MAX_THREADS}")
        self._path = find_model(Path(path))
        self._signature = signature
        library.load()
        library.load_op_libraries(op_libraries)
        library.check_isa()
        manifest = reader.open_bundle(self._path).manifest if naming.is_bundle(self._path) else None
        chosen = (tags,) if isinstance(tags, str) else tuple(tags)
        described = {} if manifest is None else manifest["signatures"]
        files = [] if manifest is None else manifest["store"]["files"]

        def load(choice: Mapping[str, Any]) -> Any:
            return load_model(self._path, chosen, intra_op_threads, config, device_map, choice)

        self._model, self._tower = dense_form.load_tower(
            str(self._path),
            signature,
            described.get(signature, {}),
            dense_form.Wish(engine, fallback, intra_op_threads),
            load,
            lambda index: self._store_file(files, index),
        )
        self._definitions = {
            name: meta_graph_pb2.SignatureDef.FromString(data) for name, data in self._model.signatures().items()
        }
        self._hidden = {*_INTERNAL, *(name for info in described.values() for name in _other_forms(info))}
        if signature not in self._definitions:
            there = ", ".join(self.signatures) or "none"
            raise UsageError(f"{self._path}: no signature {signature!r}; there is: {there}")
        wanted = (user_features,) if isinstance(user_features, str) else tuple(user_features)
        self._prepare(self._tower.applied(described.get(signature, {})), features, wanted)
        self._devices = device_report(str(self._path), self._model.devices())

    def _store_file(self, files: Sequence[Mapping[str, Any]], index: int) -> Path:
        if not 0 <= index < len(files):
            raise CorruptFileError(
                f"{self._path}: the graph's engine reads file {index} of the store, the manifest has {len(files)}"
            )
        return self._path / str(files[index]["file"])

    def _recorded_features(self, described: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """What the bundle's manifest says, or what was written beside a plain SavedModel."""
        if "features" in described:
            return described["features"]  # type: ignore[no-any-return]
        return input_features.read(self._path).get(self._signature, ())

    def _prepare(
        self, described: Mapping[str, Any], features: Iterable[Mapping[str, Any]] | None, wanted: tuple[str, ...]
    ) -> None:
        where = str(self._path)
        self._info: SignatureInfo = read_signature(self._definitions[self._signature])
        given = list(self._recorded_features(described) if features is None else features)
        self._features = feature_map.with_features(self._info, given)
        self._users = users.user_inputs(where, self._info, self._features, described, wanted)
        packed_name = described.get("packed")
        packed, outputs = None, self._info.outputs
        if described["form"]:
            outputs = read_signature(users.definition(where, self._definitions, described["form"])).outputs
        if packed_name:
            packed = users.packed_tensors(where, self._definitions, packed_name)
            outputs = read_signature(self._definitions[packed_name]).outputs
        self._outputs = outputs
        self._dense_only = all(output.kind == "dense" for output in outputs)
        like = {entry["name"]: (entry.get("domain") or {}).get("like") for entry in described.get("inputs", ())}
        like |= {entry["parts"]["values"]: entry["like"] for entry in given if entry.get("like")}
        plan = feature_map.describe(
            f"model '{where}', signature '{self._signature}'",
            self._info,
            self._features,
            packed,
            outputs,
            users.describe(where, self._info, self._users, self._definitions) if self._users else None,
            {name: of for name, of in like.items() if of},
        )
        self._predictor: Any = library.native().Predictor(self._model, plan)
        self._packed = packed is not None

    def predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the signature.

        Args:
          inputs: input name -> array, tensor, nested list or scalar of the input's shape; feature name -> SparseTensor,
            RaggedTensor (or their Value classes), or nested lists, one per row. A name that is both a feature and one
            of its parts means the feature for those, the part for a flat array. Integers are cast where they fit, any
            number where floats are expected.
            Features that :attr:`user_features` lists may have one row for the one user of all B rows of the others; or
            U rows, one per user, with the input :attr:`row_to_user` (int64 [B], values in [0, U)) to say which user
            each row belongs to.

        Returns:
          Output name -> np.ndarray (object arrays of bytes for strings), tf.compat.v1.SparseTensorValue or
          RaggedTensorValue.

        Raises:
          InputError: names the input or feature, what came and what was expected; or what the model itself found wrong
            with the values.
          UsageError: the session is closed.
        """
        request = inputs if type(inputs) is dict else _as_dict(inputs)
        outputs: dict[str, Any] = self._open().predict(request)
        return outputs if self._dense_only else feature_map.assemble(self._outputs, outputs)

    def run_traced(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], config_pb2.RunMetadata]:
        """As :meth:`predict`, with TensorFlow's RunMetadata of this run (op start and end times in microseconds)."""
        outputs, metadata = self._open().predict_traced(_as_dict(inputs))
        return feature_map.assemble(self._outputs, outputs), config_pb2.RunMetadata.FromString(metadata)

    @property
    def path(self) -> Path:
        """The folder that was loaded."""
        return self._path

    @property
    def signatures(self) -> tuple[str, ...]:
        """Names of the model's signatures, without those that only tfctr and the loader use."""
        return tuple(sorted(set(self._definitions) - self._hidden))

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors that this signature takes, in order of their names."""
        return self._info.inputs

    @property
    def features(self) -> tuple[Feature, ...]:
        """The sparse and ragged features among the inputs."""
        return self._features

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What :meth:`predict` returns."""
        return self._outputs

    @property
    def packed(self) -> bool:
        """Whether requests reach the graph as one packed arena (bundles) rather than tensor by tensor."""
        return self._packed

    @property
    def user_features(self) -> tuple[str, ...]:
        """Features and inputs that a request may give once per user."""
        return self._users.features if self._users else ()

    @property
    def user_inputs(self) -> tuple[str, ...]:
        """The inputs behind :attr:`user_features`."""
        return tuple(sorted(self._users.inputs)) if self._users else ()

    @property
    def row_to_user(self) -> str | None:
        """Name of the input that says which user row each row belongs to; None where no user features are declared."""
        return self._users.row_to_user if self._users else None

    def describe(self) -> dict[str, Any]:
        """What was loaded and how requests have run so far.

        ``path``, ``signature``, ``packed``; ``split``: the form that takes user inputs once {signature, packed,
        user_features, item_side}, None where there is none; ``user_features``, ``row_to_user``; ``devices``: {asked
        {device: nodes}, session, fell_back [{device, nodes, ops}]}; ``requests``: {plain, split, repeated}, those that
        reached the graph. ``repeated`` ones are among the others: their user rows had to be repeated for every
        candidate, which is slower. ``dense``: what runs the dense tower {asked, running: providers, precision,
        fallback: whether that is not what the bundle asks for, reason, isa {built, here}, engine {name, version}, None
        on TensorFlow, buckets: batch sizes with a variant of their own, engines: what each says of itself, calls:
        requests that engines ran}.
        """
        counts = dict(self._open().requests())
        split = self._users.split if self._users else None
        keys = ("signature", "packed", "user_features", "item_side")
        return {
            "path": str(self._path),
            "signature": self._signature,
            "packed": self._packed,
            "split": None if split is None else {key: split.get(key) for key in keys},
            "user_features": list(self.user_features),
            "row_to_user": self.row_to_user,
            "devices": self._devices,
            "requests": counts,
            "dense": self._tower.describe(counts),
        }

    def close(self) -> None:
        """Gives the model's memory back once calls in progress are done. Further calls of close do nothing."""
        self._predictor = None
        self._model = None
        self._tower.close()

    def __enter__(self) -> ServingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Any:
        predictor = self._predictor
        if predictor is None:
            raise UsageError(f"{self._path}: this ServingSession is closed")
        return predictor


def _other_forms(info: Mapping[str, Any]) -> list[str]:
    """Signatures that exist only as forms of another: what a manifest's entry names as packed and split."""
    split = info.get("split") or {}
    dense = [form.get("dense") or {} for form in (info, split)]
    forms = [info.get("packed"), split.get("signature"), split.get("packed")]
    forms += [one.get(key) for one in dense for key in ("form", "packed")]
    return [name for name in forms if name]


def _as_dict(inputs: Any) -> dict[str, Any]:
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs must be a mapping of input names to values, got {type(inputs).__name__}")
    return dict(inputs)
