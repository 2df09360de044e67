"""Embedding tables in Keras models: `Embedding`, `check_finite`, `export` (docs/keras.md)."""

from tfctr.keras.embedding import Embedding
from tfctr.keras.export import export
from tfctr.keras.finite import check_finite

__all__ = ["Embedding", "check_finite", "export"]
