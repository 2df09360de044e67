"""The optimizers of embedding variables in NumPy, one row at a time: what tfctr/core/embedding/optimizers.h says.

All arithmetic is float32 with one rounding per operation, in the order of the formulas, so results equal those of the
table bit for bit, but for `RowWiseAdagrad` (another order of the sum over the row) and powers other than -0.5 in `Ftrl`
(NumPy's power). `Adagrad` is in reference_table.py.
"""

import dataclasses
from typing import Any

import numpy as np

from tests.embedding.reference_table import Adagrad, Optimizer

F = np.float32
Slots = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SGD:
    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return {}

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        value -= gradient * F(learning_rate)


@dataclasses.dataclass(frozen=True)
class RowWiseAdagrad:
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return {"accumulator": (1, self.initial_accumulator_value)}

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        accumulator = slots["accumulator"]
        accumulator += np.sum(gradient * gradient, dtype=F) / F(len(gradient))
        value -= gradient * (F(learning_rate) / (np.sqrt(accumulator) + F(self.epsilon)))


def powers(beta: float, t: int) -> float:
    """beta^t in float64, of beta as float32 has it."""
    return float(F(beta)) ** t


@dataclasses.dataclass(frozen=True)
class Adam:
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return {"momentum": (dim, 0.0), "velocity": (dim, 0.0)}

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        rate = float(F(learning_rate))
        t = step + 1
        alpha = F(rate * np.sqrt(1 - powers(self.beta_2, t)) / (1 - powers(self.beta_1, t)))
        self.move(value, slots, gradient, alpha)

    def move(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, alpha: Any) -> None:
        momentum, velocity = slots["momentum"], slots["velocity"]
        momentum += (gradient - momentum) * F(1 - self.beta_1)
        velocity += (gradient * gradient - velocity) * F(1 - self.beta_2)
        value -= (momentum * alpha) / (np.sqrt(velocity) + F(self.epsilon))


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    weight_decay: float = 0.004

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        value -= value * F(self.weight_decay) * F(learning_rate)
        super().update(value, slots, gradient, learning_rate, step)


@dataclasses.dataclass(frozen=True)
class LazyAdam(Adam):
    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return super().slots(dim) | {"correction1": (1, 0.0), "correction2": (1, 0.0)}

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        for name, beta in (("correction1", self.beta_1), ("correction2", self.beta_2)):
            slots[name] += (F(1) - slots[name]) * F(1 - beta)
        alpha = F(learning_rate) * np.sqrt(slots["correction2"]) / slots["correction1"]
        self.move(value, slots, gradient, alpha)


@dataclasses.dataclass(frozen=True)
class Ftrl:
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return {"accumulator": (dim, self.initial_accumulator_value), "linear": (dim, 0.0)}

    def power(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(x) if self.learning_rate_power == -0.5 else np.power(x, F(-self.learning_rate_power))

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        accumulator, linear = slots["accumulator"], slots["linear"]
        rate, l1 = F(learning_rate), F(self.l1_regularization_strength)
        l2 = F(self.l2_regularization_strength) + (F(self.beta) / (F(2) * rate) if self.beta else F(0))
        total = accumulator + gradient * gradient
        shrunk = gradient + value * (F(2) * F(self.l2_shrinkage_regularization_strength))
        linear += shrunk - (self.power(total) - self.power(accumulator)) / rate * value
        quadratic = self.power(total) / rate + F(2) * l2
        value[:] = (np.clip(linear, -l1, l1) - linear) / quadratic
        accumulator[:] = total


@dataclasses.dataclass(frozen=True)
class AdagradDecay(Adagrad):
    accumulator_decay_steps: int = 100_000
    accumulator_decay_rate: float = 0.9

    def slots(self, dim: int) -> dict[str, tuple[int, float]]:
        return super().slots(dim) | {"period": (1, 0.0)}

    def update(self, value: np.ndarray, slots: Slots, gradient: np.ndarray, learning_rate: float, step: int) -> None:
        period = step // self.accumulator_decay_steps
        missed = period - int(slots["period"][0])
        if missed > 0:
            lower = slots["accumulator"] * F(self.accumulator_decay_rate**missed)
            slots["accumulator"][:] = np.maximum(lower, F(self.initial_accumulator_value))
            slots["period"][:] = period
        super().update(value, slots, gradient, learning_rate, step)


KINDS: dict[str, Any] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": Adam,
    "adamw": AdamW,
    "lazy_adam": LazyAdam,
    "ftrl": Ftrl,
    "adagrad_decay": AdagradDecay,
}


def reference_of(config: dict[str, Any]) -> Optimizer:
    """The reference of an optimizer's configuration, `tfctr.optimizers.X(...).config()`."""
    made: Optimizer = KINDS[config["kind"]](**{name: value for name, value in config.items() if name != "kind"})
    return made
