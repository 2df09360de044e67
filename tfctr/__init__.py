"""tfctr: train CTR models with tables that grow, and serve them several times faster, on stock TensorFlow.

`import tfctr` registers the ops a bundle or a table needs, so that `tf.saved_model.load` takes either. The rest comes
when first used. Serving:

  tfctr.convert(...)          SavedModel -> fused bundle
  tfctr.refresh(...)          bundle + newer export of its model -> bundle with the new weights
  tfctr.make_delta(...)       bundle + newer SavedModel or checkpoint -> what changed, as a small folder
  tfctr.apply_delta(...)      bundle + deltas -> its next version, with hard links; tfctr.compact: overlays merged
  tfctr.bisect(...)           which pass makes a converted model differ
  tfctr.ServingSession(path)  runs a bundle or a SavedModel
  tfctr.SessionGroup(path)    the same on several executors, with batching; tfctr.GroupOptions, BatchingOptions
  tfctr.load_table(path)      rows of a bundle's table, or of a table file, by key
  tfctr.passes                write and test your own rewrite rule

Training (docs/embedding_variable.md):

  tfctr.keras.Embedding(...)  a layer over a table without vocabulary and collisions, for model.compile and fit
  tfctr.EmbeddingVariable     the table itself; tfctr.embedding_lookup, embedding_lookup_sparse, embedding_lookup_group
  tfctr.optimizers            what updates its rows: Adagrad, Adam, Ftrl, ...
  tfctr.CounterAdmission, BloomAdmission                                   who gets a row
  tfctr.StepEviction, TtlEviction, L2Eviction, CapacityEviction            who loses it
  tfctr.Uniform, Normal, TruncatedNormal, Constant                         first values
  tfctr.apply_gradients, minimize                                          training without Keras
  tfctr.checkpoint_options    parts that saving and restoring leave out
  tfctr.DeltaCheckpointManager   checkpoints of what changed in the tables since the last
  tfctr.warm_start            rows from variables, hashed tables, NumPy, Parquet
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfctr.core import library as _library
from tfctr.version import __version__

if TYPE_CHECKING:
    from tfctr import keras, passes
    from tfctr.bisecting import bisect
    from tfctr.bundle.deltas.apply import apply_delta
    from tfctr.bundle.deltas.compact import compact
    from tfctr.bundle.tables import load_table
    from tfctr.converting import convert
    from tfctr.delta_making import make_delta
    from tfctr.embedding import optimizers, warm_start
    from tfctr.embedding.checkpoint import CheckpointOptions, checkpoint_options
    from tfctr.embedding.clock import ManualClock
    from tfctr.embedding.delta_checkpoint import DeltaCheckpointManager
    from tfctr.embedding.lookup import Lookup, embedding_lookup, embedding_lookup_group, embedding_lookup_sparse
    from tfctr.embedding.options import (
        BloomAdmission,
        CapacityEviction,
        Constant,
        CounterAdmission,
        L2Eviction,
        Normal,
        StepEviction,
        TruncatedNormal,
        TtlEviction,
        Uniform,
    )
    from tfctr.embedding.training import apply_gradients, minimize
    from tfctr.embedding.variable import EmbeddingVariable
    from tfctr.refreshing import refresh
    from tfctr.serving.group import BatchingOptions, GroupOptions, SessionGroup
    from tfctr.serving.session import ServingSession

__all__ = [
    "BatchingOptions",
    "BloomAdmission",
    "CapacityEviction",
    "CheckpointOptions",
    "Constant",
    "CounterAdmission",
    "DeltaCheckpointManager",
    "EmbeddingVariable",
    "GroupOptions",
    "L2Eviction",
    "Lookup",
    "ManualClock",
    "Normal",
    "ServingSession",
    "SessionGroup",
    "StepEviction",
    "TruncatedNormal",
    "TtlEviction",
    "Uniform",
    "__version__",
    "apply_delta",
    "apply_gradients",
    "bisect",
    "checkpoint_options",
    "compact",
    "convert",
    "embedding_lookup",
    "embedding_lookup_group",
    "embedding_lookup_sparse",
    "keras",
    "load_table",
    "make_delta",
    "minimize",
    "optimizers",
    "passes",
    "refresh",
    "warm_start",
]

# Module -> the names it gives, imported on first use: serving never imports graph_opt, `tfctr --help` no TensorFlow.
_FROM = {
    "tfctr.bisecting": ("bisect",),
    "tfctr.bundle.deltas.apply": ("apply_delta",),
    "tfctr.bundle.deltas.compact": ("compact",),
    "tfctr.bundle.tables": ("load_table",),
    "tfctr.converting": ("convert",),
    "tfctr.delta_making": ("make_delta",),
    "tfctr.embedding.checkpoint": ("CheckpointOptions", "checkpoint_options"),
    "tfctr.embedding.clock": ("ManualClock",),
    "tfctr.embedding.delta_checkpoint": ("DeltaCheckpointManager",),
    "tfctr.embedding.lookup": ("Lookup", "embedding_lookup", "embedding_lookup_group", "embedding_lookup_sparse"),
    "tfctr.embedding.options": (
        *("BloomAdmission", "CounterAdmission", "CapacityEviction", "L2Eviction", "StepEviction", "TtlEviction"),
        *("Constant", "Normal", "TruncatedNormal", "Uniform"),
    ),
    "tfctr.embedding.training": ("apply_gradients", "minimize"),
    "tfctr.embedding.variable": ("EmbeddingVariable",),
    "tfctr.refreshing": ("refresh",),
    "tfctr.serving.group": ("BatchingOptions", "GroupOptions", "SessionGroup"),
    "tfctr.serving.session": ("ServingSession",),
}
# Name -> (module, attribute); None: the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "keras": ("tfctr.keras", None),
    "optimizers": ("tfctr.embedding.optimizers", None),
    "passes": ("tfctr.passes", None),
    "warm_start": ("tfctr.embedding.warm_start", None),
    **{name: (module, name) for module, names in _FROM.items() for name in names},
}

_library.load_with_tensorflow(then=["tfctr.embedding.checkpoint"])


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tfctr' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
