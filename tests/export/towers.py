"""The five towers of examples/models/towers.py, made once per process and seed."""

import functools

from examples.models.towers import TOWERS, dense_tower, tower_inputs

tower = functools.cache(dense_tower)

__all__ = ["TOWERS", "tower", "tower_inputs"]
