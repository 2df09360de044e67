"""Optimizers of embedding variables: which slots a row has, and how a summed gradient changes it.

`tfctr.optimizers.Adagrad(0.05)` says what the fused update does to the rows of one variable. It runs in C++ over the
rows whose keys have a gradient, and touches nothing else; gradients of equal keys are summed first. Formulas and
defaults are those of Keras and `tf.raw_ops.ResourceSparseApply*` where stock TensorFlow has the method, so numbers
agree with it within float32 rounding.

Every optimizer takes:
  learning_rate: a number, a schedule (anything callable with the int64 step, as `keras.optimizers.schedules.*`), or
    "model": follow the compiled optimizer of a Keras model, schedules and callbacks included (`tfctr.keras` only).
  clip_value: each number of a summed gradient is cut to [-clip_value, clip_value].
  clip_row_norm: each summed row gradient is scaled down to this Euclidean norm at most.
  clip_norm: all row gradients of one update of the variable are scaled down together to this norm at most.
  At most one of the three; they concern this variable alone.

Gradients, rows and slots are float32 [dim] per key; decays and betas are per step. Every class raises UsageError for a
value out of range, naming class, argument and what was expected. docs/embedding_variable.md has the exact formulas.
"""

import dataclasses
from typing import Any

from tfctr.embedding import option_values as check

__all__ = [
    "SGD",
    "Adagrad",
    "AdagradDecay",
    "Adam",
    "AdamW",
    "Ftrl",
    "LazyAdam",
    "Optimizer",
    "RowWiseAdagrad",
]

_COMMON = ("learning_rate", "clip_value", "clip_row_norm", "clip_norm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Clipping:
    clip_value: float | None = None
    clip_row_norm: float | None = None
    clip_norm: float | None = None

    def _check_clipping(self) -> None:
        given = [name for name in _COMMON[1:] if getattr(self, name) is not None]
        for name in given:
            check.real(self, name, getattr(self, name), above=0)
        if len(given) > 1:
            raise check.refuse(self, given[1], getattr(self, given[1]), f"None, because {given[0]} is given")


class Optimizer(_Clipping):
    """Base of the classes below. `config()` and `clip_config()` are what the table's configuration says (JSON)."""

    learning_rate: Any
    _kind = ""
    _slots: tuple[str, ...] = ()
    _narrow: tuple[str, ...] = ()

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots, in the order in which a row and a checkpoint hold them."""
        return self._slots

    @property
    def narrow_slots(self) -> tuple[str, ...]:
        """Those of them that are one number per row; the others are as wide as the row."""
        return self._narrow

    def config(self) -> dict[str, Any]:
        """Kind and hyper-parameters; the learning rate is not one: it is given with each update."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in _COMMON]
        values = {name: getattr(self, name) for name in names}
        return {"kind": self._kind} | {n: int(v) if n.endswith("_steps") else float(v) for n, v in values.items()}

    def clip_config(self) -> dict[str, Any] | None:
        """`{"kind": "value" | "row_norm" | "norm", "limit": x}`, or None."""
        for name in _COMMON[1:]:
            if getattr(self, name) is not None:
                return {"kind": name.removeprefix("clip_"), "limit": float(getattr(self, name))}
        return None

    def rate_at(self, step: Any) -> Any:
        """The learning rate of an update: the number, or what the schedule says at `step` (an int or int64 tensor)."""
        if not callable(self.learning_rate):
            return self.learning_rate
        from tfctr.embedding import tracing  # imports TensorFlow, which options do without

        return tracing.user_code(self.learning_rate)(step)

    def _check(self) -> None:
        if self.learning_rate != "model" and not callable(self.learning_rate):
            if isinstance(self.learning_rate, str):
                raise check.refuse(self, "learning_rate", self.learning_rate, 'a number, a schedule or "model"')
            check.real(self, "learning_rate", self.learning_rate, low=0)
        self._check_clipping()


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """row -= learning_rate * gradient. No slots, the smallest rows."""

    learning_rate: Any = 0.01
    _kind = "sgd"

    def __post_init__(self) -> None:
        self._check()


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """a += g*g; row -= learning_rate * g / (sqrt(a) + epsilon). One slot, "accumulator", as wide as the row.

    Duchi, Hazan and Singer, "Adaptive Subgradient Methods", 2011; epsilon as in TensorFlow's sparse op.
    `initial_accumulator_value` is the slot's first value.
    """

    learning_rate: Any = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    _kind = "adagrad"
    _slots = ("accumulator",)

    def __post_init__(self) -> None:
        check.real(self, "initial_accumulator_value", self.initial_accumulator_value, low=0)
        check.real(self, "epsilon", self.epsilon, above=0)
        self._check()


@dataclasses.dataclass(frozen=True)
class RowWiseAdagrad(Optimizer):
    """a += mean(g*g); row -= learning_rate * g / (sqrt(a) + epsilon). Slot "accumulator" is one number per row.

    The form of Adagrad that Caffe2, DLRM and FBGEMM use for embedding tables.
    """

    learning_rate: Any = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    _kind = "rowwise_adagrad"
    _slots = ("accumulator",)
    _narrow = ("accumulator",)

    def __post_init__(self) -> None:
        check.real(self, "initial_accumulator_value", self.initial_accumulator_value, low=0)
        check.real(self, "epsilon", self.epsilon, above=0)
        self._check()


class _AdamLike(Optimizer):
    beta_1: float
    beta_2: float
    epsilon: float
    _slots: tuple[str, ...] = ("momentum", "velocity")

    def _check_adam(self) -> None:
        check.real(self, "beta_1", self.beta_1, low=0, below=1)
        check.real(self, "beta_2", self.beta_2, low=0, below=1)
        check.real(self, "epsilon", self.epsilon, above=0)
        self._check()


@dataclasses.dataclass(frozen=True)
class Adam(_AdamLike):
    """Adam on the rows that have a gradient, with the powers of the model-wide step (update number = step + 1).

    Slots "momentum" and "velocity". Rows without a gradient keep value and slots; stock Keras moves those too, at the
    price of an update of the whole table. Kingma and Ba, "Adam", arXiv:1412.6980.
    """

    learning_rate: Any = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    _kind = "adam"

    def __post_init__(self) -> None:
        self._check_adam()


@dataclasses.dataclass(frozen=True)
class AdamW(_AdamLike):
    """Adam with decoupled weight decay: a row that has a gradient also loses learning_rate * weight_decay * row.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """

    learning_rate: Any = 0.001
    weight_decay: float = 0.004
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    _kind = "adamw"

    def __post_init__(self) -> None:
        check.real(self, "weight_decay", self.weight_decay, low=0)
        self._check_adam()


@dataclasses.dataclass(frozen=True)
class LazyAdam(_AdamLike):
    """Adam whose powers belong to the row: each row is corrected by its own number of updates, whenever they come.

    For rare keys and for asynchronous workers, where the model-wide step says little about a row. Slots "momentum",
    "velocity", and one number each "correction1", "correction2": the powers. Other libraries' lazy Adam leaves rows
    without a gradient alone, as `Adam` here does, but keeps the powers of the step.
    """

    learning_rate: Any = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    _kind = "lazy_adam"
    _slots = ("momentum", "velocity", "correction1", "correction2")
    _narrow = ("correction1", "correction2")

    def __post_init__(self) -> None:
        self._check_adam()


@dataclasses.dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-proximal, as `tf.raw_ops.ResourceSparseApplyFtrlV2` and Keras. Slots "accumulator" and "linear".

    `l1_regularization_strength` makes values that matter little exactly zero; `learning_rate_power` is <= 0.
    McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013.
    """

    learning_rate: Any = 0.001
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0
    _kind = "ftrl"
    _slots = ("accumulator", "linear")

    def __post_init__(self) -> None:
        check.real(self, "learning_rate_power", self.learning_rate_power, high=0)
        strengths = [name for name in type(self).__annotations__ if name.endswith("_strength")]
        for name in ("initial_accumulator_value", "beta", *strengths):
            check.real(self, name, getattr(self, name), low=0)
        self._check()


@dataclasses.dataclass(frozen=True)
class AdagradDecay(Optimizer):
    """Adagrad that forgets: every `accumulator_decay_steps` steps a row's accumulator is multiplied by
    `accumulator_decay_rate`, never below `initial_accumulator_value`. For data that keep changing.

    The decay is made up for when the row is next updated, so it costs nothing for rows at rest. The idea is that of
    DeepRec's optimizer of this name.
    """

    learning_rate: Any = 0.001
    initial_accumulator_value: float = 0.1
    accumulator_decay_steps: int = 100_000
    accumulator_decay_rate: float = 0.9
    epsilon: float = 1e-7
    _kind = "adagrad_decay"
    _slots = ("accumulator", "period")
    _narrow = ("period",)

    def __post_init__(self) -> None:
        check.real(self, "initial_accumulator_value", self.initial_accumulator_value, low=0)
        check.whole(self, "accumulator_decay_steps", self.accumulator_decay_steps, 1)
        check.real(self, "accumulator_decay_rate", self.accumulator_decay_rate, above=0, high=1)
        check.real(self, "epsilon", self.epsilon, above=0)
        self._check()
