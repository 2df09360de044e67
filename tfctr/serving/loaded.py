"""One loaded model behind a ServingSession: TensorFlow's session, the signature's tensors, the prepared predictor.

Immutable. A session holds one at a time behind one name; a request takes it once and uses nothing else, so that a
session that changes to another version never mixes two.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from tfctr.bundle import input_features
from tfctr.core import library
from tfctr.errors import CorruptFileError, InternalError, UsageError
from tfctr.serving import dense_form, feature_map
from tfctr.serving import user_inputs as users
from tfctr.serving.devices import device_report
from tfctr.serving.model_folder import load_model, unknown_op
from tfctr.serving.signature_info import Feature, Output, SignatureInfo, read_signature

_loading = threading.Lock()
_INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a ServingSession was asked for (see there); where: the model, for messages. model: how errors of
    requests begin; "": with ``where``."""

    where: str
    signature: str
    tags: tuple[str, ...]
    intra_op_threads: int
    features: tuple[Mapping[str, Any], ...] | None
    user_features: tuple[str, ...]
    config: config_pb2.ConfigProto | None
    device_map: Mapping[str, str] | None
    engine: str | None
    fallback: bool
    table_memory: str | None = None
    model: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A signature as requests meet it. description: what ``_native.Predictor`` and ``Group.signature`` take."""

    description: Mapping[str, Any]
    info: SignatureInfo
    features: tuple[Feature, ...]
    users: users.UserInputs | None
    outputs: tuple[Output, ...]
    packed: bool
    dense_only: bool


@dataclasses.dataclass(kw_only=True)
class Loaded:
    """model: the native one. tower: what runs the dense tower. hidden: signatures that only forms and the loader use.
    runs: the queue of requests that may wait (``session_runs``). Nothing changes after it is made, but for ``close``.
    """

    model: Any
    predictor: Any
    tower: dense_form.DenseTower
    definitions: Mapping[str, meta_graph_pb2.SignatureDef]
    hidden: frozenset[str]
    prepared: Prepared
    devices: Mapping[str, Any]
    runs: Any = None

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.definitions) - self.hidden))


def load(
    folder: Path, manifest: Mapping[str, Any] | None, options: LoadOptions, store_paths: Sequence[Path] | None = None
) -> Loaded:
    """Loads the SavedModel in ``folder`` and opens its engines.

    manifest: of a bundle, None for a plain SavedModel. store_paths: where the files of its store lie, by index; None:
    where the manifest says. Errors: see ServingSession.
    """
    described: Mapping[str, Any] = {} if manifest is None else manifest["signatures"]
    files = [] if manifest is None else manifest["store"]["files"]
    paths = [folder / str(file["file"]) for file in files] if store_paths is None else store_paths

    def load_with(choice: Mapping[str, Any]) -> Any:
        with tables_in(options.table_memory):
            return load_model(
                folder, options.tags, options.intra_op_threads, options.config, options.device_map, choice
            )

    model, tower = dense_form.load_tower(
        options.where,
        options.signature,
        described.get(options.signature, {}),
        dense_form.Wish(options.engine, options.fallback, options.intra_op_threads),
        load_with,
        path_by_index(options.where, paths),
    )
    definitions = read_definitions(model)
    hidden = hidden_signatures(described)
    if options.signature not in definitions:
        raise no_signature(options.where, options.signature, set(definitions) - hidden)
    made = prepare(folder, definitions, tower.applied(described.get(options.signature, {})), options)
    return Loaded(
        model=model,
        predictor=_predictor(options.where, model, made.description),
        tower=tower,
        definitions=definitions,
        hidden=hidden,
        prepared=made,
        devices=device_report(options.where, model.devices()),
    )


def _predictor(where: str, model: Any, description: Mapping[str, Any]) -> Any:
    try:
        return library.native().Predictor(model, description)
    except InternalError as error:
        raise unknown_op(where, str(error)) or error from error


def no_signature(where: str, name: str, there: Iterable[str]) -> UsageError:
    return UsageError(f"{where}: no signature {name!r}; there is: {', '.join(sorted(there)) or 'none'}")


@contextlib.contextmanager
def tables_in(memory: str | None) -> Iterator[None]:
    """While a store is opened: how its tables are kept. The native library has one word for the process, so models are
    loaded one after the other."""
    native = library.native()
    with _loading:
        try:
            before = native.table_memory()
            if memory is not None:
                native.set_table_memory(memory)
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            yield
        finally:
            if memory is not None:
                native.set_table_memory(before)


def path_by_index(where: str, paths: Sequence[Path]) -> Callable[[int], Path]:
    def path(index: int) -> Path:
        if not 0 <= index < len(paths):
            raise CorruptFileError(
                f"{where}: the graph's engine reads file {index} of the store, the manifest has {len(paths)}"
            )
        return paths[index]

    return path


def _recorded_features(folder: Path, described: Mapping[str, Any], signature: str) -> Iterable[Mapping[str, Any]]:
    """What the bundle's manifest says, or what was written beside a plain SavedModel."""
    if "features" in described:
        return described["features"]  # type: ignore[no-any-return]
    return input_features.read(folder).get(signature, ())


def prepare(
    folder: Path,
    definitions: Mapping[str, meta_graph_pb2.SignatureDef],
    described: Mapping[str, Any],
    options: LoadOptions,
) -> Prepared:
    """The signature that ``options`` names. described: its entry in the manifest with the forms that its tower runs
    (``DenseTower.applied``)."""
    where = options.where
    info = read_signature(definitions[options.signature])
    recorded = _recorded_features(folder, described, options.signature)
    given = list(recorded if options.features is None else options.features)
    features = feature_map.with_features(info, given)
    found = users.user_inputs(where, info, features, described, options.user_features)
    packed_name = described.get("packed")
    packed, outputs = None, info.outputs
    if described["form"]:
        outputs = read_signature(users.definition(where, definitions, described["form"])).outputs
    if packed_name:
        packed = users.packed_tensors(where, definitions, packed_name)
        outputs = read_signature(definitions[packed_name]).outputs
    like = {entry["name"]: (entry.get("domain") or {}).get("like") for entry in described.get("inputs", ())}
    like |= {entry["parts"]["values"]: entry["like"] for entry in given if entry.get("like")}
    begin = options.model or f"model '{where}'"
    description = feature_map.describe(
        f"{begin}, signature '{options.signature}'",
        info,
        features,
        packed,
        outputs,
        users.describe(where, info, found, definitions) if found else None,
        {name: of for name, of in like.items() if of},
    )
    return Prepared(
        description=description,
        info=info,
        features=features,
        users=found,
        outputs=outputs,
        packed=packed is not None,
        dense_only=all(output.kind == "dense" for output in outputs),
    )


def hidden_signatures(described: Mapping[str, Any]) -> frozenset[str]:
    """Signatures that only forms of others and the loader use. described: of the manifest."""
    return frozenset((*_INTERNAL, *(name for info in described.values() for name in _other_forms(info))))


def read_definitions(model: Any) -> dict[str, meta_graph_pb2.SignatureDef]:
    """Signature name -> SignatureDef of a native model."""
    return {name: meta_graph_pb2.SignatureDef.FromString(data) for name, data in model.signatures().items()}


def _other_forms(info: Mapping[str, Any]) -> list[str]:
    """Signatures that exist only as forms of another: what a manifest's entry names as packed and split."""
    split = info.get("split") or {}
    dense = [form.get("dense") or {} for form in (info, split)]
    forms = [info.get("packed"), split.get("signature"), split.get("packed")]
    forms += [one.get(key) for one in dense for key in ("form", "packed")]
    return [name for name in forms if name]
