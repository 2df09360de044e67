"""tfctr: TensorFlow CTR SavedModels, fused and several times faster, with the same numbers.

`import tfctr` registers the ops a bundle needs, so that `tf.saved_model.load` takes it. The rest comes when first used:

  tfctr.convert(...)          SavedModel -> fused bundle
  tfctr.refresh(...)          bundle + newer export of its model -> bundle with the new weights
  tfctr.bisect(...)           which pass makes a converted model differ
  tfctr.ServingSession(path)  runs a bundle or a SavedModel
  tfctr.passes                write and test your own rewrite rule
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfctr.core import library as _library
from tfctr.version import __version__

if TYPE_CHECKING:
    from tfctr import passes
    from tfctr.bisecting import bisect
    from tfctr.converting import convert
    from tfctr.refreshing import refresh
    from tfctr.serving.session import ServingSession

__all__ = ["ServingSession", "__version__", "bisect", "convert", "passes", "refresh"]

# Name -> (module, attribute), imported on first use: so serving never imports graph_opt.
_LAZY = {
    "bisect": ("tfctr.bisecting", "bisect"),
    "convert": ("tfctr.converting", "convert"),
    "refresh": ("tfctr.refreshing", "refresh"),
    "ServingSession": ("tfctr.serving.session", "ServingSession"),
    "passes": ("tfctr.passes", None),
}

_library.load_with_tensorflow()


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
