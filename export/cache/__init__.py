"""The compile cache: towers exported to ONNX, and engines compiled from them, kept by what they were made from.

    with CompileCache(default_root()) as cache:
        entry = cache.get_or_build("engine", engine_key(model, recipe), build, label="model/ serving_default")

docs/compile_cache.md says what a key holds and what lies where.
"""

from export.cache.entries import Entry
from export.cache.keys import engine_key, model_structure, tower_key, tower_structure
from export.cache.places import DEFAULT_LIMIT_BYTES, LEVELS, default_root
from export.cache.store import CompileCache

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "LEVELS",
    "CompileCache",
    "Entry",
    "default_root",
    "engine_key",
    "model_structure",
    "tower_key",
    "tower_structure",
]
