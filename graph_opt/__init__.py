"""graph_opt: SavedModel in, a smaller graph that gives the same numbers out.

``saved_model`` reads and inlines, ``passes`` rewrite in the order of ``pipeline.DEFAULT_PASSES``, ``recognise`` finds
embedding lookups by meaning, ``prove`` proves each of them by execution, ``convert`` does all of it and writes a
bundle.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_opt.conversion import ConvertReport, analyse, convert
    from graph_opt.options import ConvertOptions

__all__ = ["ConvertOptions", "ConvertReport", "analyse", "convert"]

_LAZY = {"ConvertOptions": "options", "ConvertReport": "conversion", "analyse": "conversion", "convert": "conversion"}


def __getattr__(name: str) -> Any:
    # On first use: the passes import the package, so it can't import them while it is being imported.
    if name not in _LAZY:
        raise AttributeError(f"module 'graph_opt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graph_opt.{_LAZY[name]}"), name)
