"""Options of a layer as plain JSON values and back: for `get_config` and `.keras` files."""

import dataclasses
from typing import Any

import keras
import numpy as np

from tfctr.embedding import optimizers, options
from tfctr.errors import UsageError

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for module in (options, optimizers)
    for cls in vars(module).values()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls) and not cls.__name__.startswith("_")
}


@dataclasses.dataclass(frozen=True)
class GivenOptions:
    """Options of a table as they were given; an object, so that Keras does not track the values as state."""

    values: dict[str, Any]

    def config(self) -> dict[str, Any]:
        """As JSON values, without the clock, which belongs to a process."""
        return {name: to_config(value) for name, value in self.values.items() if name != "clock"}


def to_config(option: Any) -> Any:
    """A dataclass option becomes {"option": class name, its fields}, a sequence of them a list; other values stay."""
    if isinstance(option, tuple | list):
        return [to_config(one) for one in option]
    if isinstance(option, np.ndarray | np.generic):
        return option.tolist()
    if not dataclasses.is_dataclass(option) or isinstance(option, type):
        return option
    fields = {field.name: getattr(option, field.name) for field in dataclasses.fields(option)}
    if callable(rate := fields.get("learning_rate")):
        fields["learning_rate"] = keras.saving.serialize_keras_object(rate)
    return {"option": type(option).__name__, **{name: _plain(value) for name, value in fields.items()}}


def from_config(config: Any) -> Any:
    """Undoes `to_config`.

    Raises:
      UsageError: an option of a class that this version does not have.
    """
    if isinstance(config, tuple | list):
        return [from_config(one) for one in config]
    if not isinstance(config, dict):
        return config
    fields = dict(config)
    name = fields.pop("option", None)
    if name not in _CLASSES:
        raise UsageError(f"option {name!r} of an embedding layer: expected one of {', '.join(sorted(_CLASSES))}")
    if isinstance(rate := fields.get("learning_rate"), dict):
        fields["learning_rate"] = keras.saving.deserialize_keras_object(rate)
    return _CLASSES[name](**fields)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
