"""Embedding tables in Keras models: `Embedding`, `check_finite`, `export` (docs/keras.md)."""

import keras

from tfctr.errors import VersionError

if keras.backend.backend() != "tensorflow" or int(keras.__version__.split(".")[0]) < 3:
    raise VersionError(
        f"tfctr.keras needs Keras 3 with its TensorFlow backend; this is Keras {keras.__version__} with "
        f"{keras.backend.backend()}: set KERAS_BACKEND=tensorflow before keras is imported"
    )

from tfctr.keras.embedding import Embedding
from tfctr.keras.export import export
from tfctr.keras.finite import check_finite

__all__ = ["Embedding", "check_finite", "export"]
