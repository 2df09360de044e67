"""What tables of other systems take and these don't, refused by name, with what to do instead. No TensorFlow here."""

from collections.abc import Mapping
from typing import Any

from tfctr.errors import UsageError

_GPU = "tables lie in the memory of the host, never on a GPU; leave it out (the dense part may run on one)"
_MULTI_HASH = (
    "multi-hash tables, whose rows are put together from several small tables, are not supported: every key has a row "
    "of its own; admission=, eviction= and max_bytes= keep a table small"
)
_DIMENSIONS = (
    "all rows of a table have one dimension, a dimension per key is not supported; make a variable for each dimension"
)
_INSTEAD = {
    "device": _GPU,
    "devices": _GPU,
    "storage_option": _GPU,
    "storage_type": _GPU,
    "complementary_strategy": _MULTI_HASH,
    "hash_functions": _MULTI_HASH,
    "num_hashes": _MULTI_HASH,
    "operation": _MULTI_HASH,
    "dims": _DIMENSIONS,
    "embedding_block_dimension": _DIMENSIONS,
    "embedding_block_num": _DIMENSIONS,
}


def refuse_options(owner: str, options: Mapping[str, Any]) -> None:
    """Refuses every option in `options`, which are those that a variable has no argument for.

    Raises:
      UsageError: one of them asks for what other systems have; names the variable and the option, and says why not.
      TypeError: it is no option of anything known here (as Python says it of a misspelt argument).
    """
    for name, value in options.items():
        if name in _INSTEAD:
            raise UsageError(f"{owner}: {name} is {value!r}, expected no such option: {_INSTEAD[name]}")
        raise TypeError(f"{owner}: got an unexpected keyword argument {name!r}")


def check_one_dimension(owner: str, dim: Any) -> None:
    """Refuses several dimensions, or a rule that gives each key its own, where one number belongs (UsageError)."""
    if callable(dim) or hasattr(dim, "__len__") and not isinstance(dim, str | bytes):
        raise UsageError(f"{owner}: dim is {dim!r}, expected one whole number: {_DIMENSIONS}")
