"""Checks of option values, shared by options and optimizers. No TensorFlow here: options cost nothing.

Each check names the class and the argument, what came and what was expected, and hands back the value in its one form
(a Python int or float, whatever NumPy type came). A dataclass that checks its own field has that form put into the
field.
"""

import dataclasses
import math
import numbers
from typing import Any

from tfctr.errors import UsageError

# Whole numbers beyond this lose bits in a JSON number, so an option that travels as one must not pass it.
MAX_WHOLE = 2**53


def refuse(owner: object, argument: str, value: object, expected: str) -> UsageError:
    """The error of an option: `raise refuse(self, "min_count", value, "a whole number >= 1")`."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    return UsageError(f"{name}: {argument} is {value!r}, expected {expected}")


def whole(owner: object, argument: str, value: Any, low: int, high: int = MAX_WHOLE) -> int:
    """A whole number in [low, high]; NumPy integers are taken, booleans and floats are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        limit = "" if high == MAX_WHOLE else f" and <= {high}"
        raise refuse(owner, argument, value, f"a whole number >= {low}{limit}")
    return _settled(owner, argument, int(value))


def real(
    owner: object,
    argument: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number with low <= value <= high and above < value < below, where given."""
    number = not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(float(value))
    fits = number and low <= float(value) <= high
    fits = fits and (above is None or float(value) > above) and (below is None or float(value) < below)
    if not fits:
        bounds = [
            *([f">= {low:g}"] if low > -math.inf else []),
            *([f"> {above:g}"] if above is not None else []),
            *([f"<= {high:g}"] if high < math.inf else []),
            *([f"< {below:g}"] if below is not None else []),
        ]
        raise refuse(owner, argument, value, " ".join(["a finite number", " and ".join(bounds)]).strip())
    return _settled(owner, argument, float(value))


def flag(owner: object, argument: str, value: Any) -> bool:
    """True or False, nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise refuse(owner, argument, value, "True or False")
    return value


def _settled(owner: object, argument: str, value: Any) -> Any:
    if dataclasses.is_dataclass(owner):
        object.__setattr__(owner, argument, value)  # its own check, in __post_init__: it may be frozen
    return value
