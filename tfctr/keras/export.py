"""SavedModels whose signature takes ragged and sparse inputs as they are."""

import contextlib
import logging
import os
import re
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.layer import TFLayer

from tfctr.bundle import input_features, naming, writer
from tfctr.errors import UsageError
from tfctr.keras.signature_inputs import Input, assembled, inputs_of

_DEFAULT = "serving_default"


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    inputs: Any = None,
    signature: str = _DEFAULT,
    overwrite: bool = False,
) -> Path:
    """Writes `model` as a SavedModel for inference whose signature takes ragged and sparse inputs in parts.

    An input NAME becomes, as it is:
      dense   NAME
      ragged  NAME/values [n, ...] and NAME/row_splits int64 [batch + 1]
      sparse  NAME/indices int64 [n, rank], NAME/values [n] and NAME/dense_shape int64 [rank]
    (`model.export` writes one dense tensor for each, in which every row is as long as the longest.) Which parts belong
    together is recorded in assets.extra/tfctr_features.json, so `tfctr.ServingSession` takes a ragged or sparse tensor
    under NAME, and `tfctr convert` knows it too. Tables go along with their rows; lookups insert nothing.

    Args:
      model: any built Keras model.
      path: folder to write; it appears when it is complete.
      inputs: for models whose inputs Keras does not know (subclassed ones): what the model is called with, in its
        structure (a dict, list or one), as keras.Input(...) or tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec
        in a dict.
      signature: its name.
      overwrite: replace the SavedModel that is at `path`.

    Returns:
      The folder. Its outputs are named as Keras names them: the keys of a dict, else output_0, output_1...

    Raises:
      UsageError: the inputs are not known or can't be taken apart, `path` exists, or the disk is full.
    """
    out = Path(path)
    structure = _structure(model) if inputs is None else inputs
    known = inputs_of(structure, model.name)
    replaces = _check_target(out, overwrite)
    parts = {name: spec for one in known for name, spec in one.parts.items()}

    def serve(given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return _named(model(assembled(structure, known, given), training=False))

    try:
        with _quiet_names(), _no_default_signature():
            _write(model, serve, parts, known, signature, out, replaces)
    except OSError as error:
        raise writer.disk_error(error, out) from error
    return out


def _structure(model: keras.Model) -> Any:
    if isinstance(model, keras.Sequential) and model.built:
        return model.inputs[0]
    structure = getattr(model, "_inputs_struct", None)
    if structure is None:
        raise UsageError(
            f"model {model.name!r}: its inputs are not known to Keras; say what it is called with: "
            f'export(model, path, inputs={{"ids": keras.Input((None,), dtype="int64", ragged=True)}})'
        )
    return structure


def _check_target(out: Path, overwrite: bool) -> bool:
    for path, kind in naming.leftovers(out):
        if kind == "old" and not out.exists():  # killed between the two renames of a replacement
            os.rename(path, out)
            raise UsageError(f"an interrupted export had moved {out} to {path.name}; it is back in place. Run again")
        writer.remove(path)
    if not os.path.lexists(out):
        return False
    if not overwrite:
        raise UsageError(f"{out}: exists already; overwrite=True replaces it")
    if not naming.is_saved_model(out):
        raise UsageError(f"{out}: exists and holds no {naming.MODEL}; overwrite=True replaces SavedModels only")
    return True


def _write(
    model: keras.Model,
    serve: Callable[..., Any],
    parts: Mapping[str, tf.TensorSpec],
    known: list[Input],
    signature: str,
    out: Path,
    replaces: bool,
) -> None:
    """Builds the SavedModel under a temporary name beside `out`, syncs it and puts it in place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = naming.temporary(out)
    writer.remove(folder)
    try:
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint(signature, serve, input_signature=[dict(parts)])
        archive.write_out(str(folder), verbose=False)
        features = [one.feature for one in known if one.feature is not None]
        names = {signature, _DEFAULT}  # Keras adds the default name where it is not the signature's
        input_features.write(folder, dict.fromkeys(sorted(names), features))
        writer.sync_tree(folder)
        if replaces:
            old = naming.temporary(out, "old")
            os.rename(out, old)
            os.rename(folder, out)
            writer.remove(old)
        else:
            os.rename(folder, out)
        writer.sync_folder(out.parent)
    finally:
        writer.remove(folder)


def _named(outputs: Any) -> dict[str, tf.Tensor]:
    """Outputs by name; ragged and sparse ones in parts, as inputs."""
    if not isinstance(outputs, Mapping):
        listed = outputs if isinstance(outputs, list | tuple) else [outputs]
        outputs = {f"output_{k}": one for k, one in enumerate(listed)}
    named: dict[str, tf.Tensor] = {}
    for name, one in outputs.items():
        if isinstance(one, tf.RaggedTensor):
            splits = {f"row_splits_{k}" if k else "row_splits": s for k, s in enumerate(one.nested_row_splits)}
            named |= {f"{name}/{role}": part for role, part in {"values": one.flat_values, **splits}.items()}
        elif isinstance(one, tf.SparseTensor):
            named |= {f"{name}/{role}": getattr(one, role) for role in ("indices", "values", "dense_shape")}
        else:
            named[name] = one
    return named


@contextlib.contextmanager
def _no_default_signature() -> Iterator[None]:
    """Without the signature that Keras adds to each model within: of a subclassed one it traces it with float32 for
    every input, which fails for ids and strings. The one that is written is ours."""
    with unittest.mock.patch.object(TFLayer, "_default_save_signature", None):
        yield


@contextlib.contextmanager
def _quiet_names() -> Iterator[None]:
    """Without TensorFlow's warning that NAME/values is no Python name: a signature is called by it all the same."""
    meant = re.compile(r"is not a valid tf\.function parameter name")
    logger = logging.getLogger("absl")

    def other(record: logging.LogRecord) -> bool:
        return not meant.search(record.getMessage())

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)
