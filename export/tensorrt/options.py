"""What a plan is built with: ranges of the open dimensions, builder settings, and the recipe that a cache key holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from export.tensorrt.library import Library
from tfctr.errors import UsageError

# Raised with every change that can change the plan of an unchanged model.
BUILDER_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Range:
    """Sizes of one open dimension: the smallest and largest that run at all, and the one that is tuned for."""

    least: int
    best: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.best <= self.most:
            raise UsageError(f"sizes {self.least}, {self.best}, {self.most}: expected 1 <= least <= best <= most")


@dataclasses.dataclass(frozen=True)
class Profile:
    """One set of kernels: a range per name of an open dimension (``N`` rows, ``U`` user rows)."""

    sizes: Mapping[str, Range]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.sizes)))


def batch_profile(
    least_rows: int = 1, best_rows: int = 256, most_rows: int = 1024, most_users: int = 64, **others: Range
) -> Profile:
    """A profile over rows; ``others``: ranges of further open dimensions by name."""
    return Profile({"N": Range(least_rows, best_rows, most_rows), "U": Range(1, 1, most_users), **others})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """profiles: at least one. optimisation_level: 0 to 5, None: the library's own. workspace_bytes: device memory that
    kernels may use on top, None: all there is. refit: weights can be exchanged later (needs a CUDA driver at build
    time). timeout_s: of a build in a process of its own.
    """

    profiles: tuple[Profile, ...] = (batch_profile(),)
    optimisation_level: int | None = None
    workspace_bytes: int | None = None
    refit: bool = False
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.profiles:
            raise UsageError("no batch profile: a plan needs at least one")
        if self.optimisation_level is not None and not 0 <= self.optimisation_level <= 5:
            raise UsageError(f"optimisation level {self.optimisation_level}: expected 0 to 5")

    @property
    def flags(self) -> tuple[str, ...]:
        """Builder flags by their names in the library."""
        return ("REFIT",) if self.refit else ()


def recipe(library: Library, target: str, options: BuildOptions) -> dict[str, Any]:
    """JSON-able: everything beside the model that decides what a plan for ``target`` is."""
    return {
        "builder": BUILDER_VERSION,
        "library": library.name,
        "version": library.version,
        "target": target,
        "strongly_typed": True,
        "flags": sorted(options.flags),
        "optimisation_level": options.optimisation_level,
        "workspace_bytes": options.workspace_bytes,
        "profiles": [
            {name: dataclasses.astuple(sizes) for name, sizes in sorted(profile.sizes.items())}
            for profile in options.profiles
        ],
    }


def input_shapes(
    model: onnx.ModelProto, profile: Profile
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Per input with open dimensions its shape at least, best and most.

    Raises UsageError: an open dimension without a name, or one that the profile has no range for.
    """
    constants = {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in constants or all(d.HasField("dim_value") for d in dims):
            continue
        ranges = [_range(value.name, axis, d, profile) for axis, d in enumerate(dims)]
        found[value.name] = (
            tuple(r.least for r in ranges),
            tuple(r.best for r in ranges),
            tuple(r.most for r in ranges),
        )
    return found


def _range(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, profile: Profile) -> Range:
    if dim.HasField("dim_value"):
        return Range(dim.dim_value, dim.dim_value, dim.dim_value)
    if dim.dim_param in profile.sizes:
        return profile.sizes[dim.dim_param]
    known: Sequence[str] = sorted(profile.sizes)
    raise UsageError(
        f"input {name!r}, axis {axis}: the batch profile has no sizes for {dim.dim_param or 'an unnamed dimension'!r}; "
        f"it has {', '.join(known) or 'none'}"
    )
