"""The clock that `TtlEviction` reads: the system's, or one that a test or a replay of old data moves by hand."""

import weakref
from typing import TYPE_CHECKING, Any

from tfctr.embedding import option_values as check

if TYPE_CHECKING:
    from tfctr.embedding.variable import EmbeddingVariable


class ManualClock:
    """A clock that stands still until it is moved. Variables made with `clock=` it see each move at once.

    >>> clock = tfctr.ManualClock()
    >>> table = tfctr.EmbeddingVariable(8, eviction=tfctr.TtlEviction(60), clock=clock)
    >>> clock.advance(61)
    >>> table.evict()

    Times are seconds since any moment you like (the system clock's is 1970-01-01 UTC), kept to the millisecond. In a
    TF1 graph `set` and `advance` return an op that moves the tables' clocks when it is run; the table initializer
    (`tf.compat.v1.tables_initializer`) sets the time that held when the variable was made.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = check.real(self, "seconds", seconds, low=0, high=1e12)
        self._variables: weakref.WeakSet[EmbeddingVariable] = weakref.WeakSet()

    @property
    def seconds(self) -> float:
        """The time it shows."""
        return self._seconds

    @property
    def time_ms(self) -> int:
        """The time it shows, in whole milliseconds: what a table keeps."""
        return round(self._seconds * 1000)

    def set(self, seconds: float) -> Any:
        """Moves the clock to `seconds`; back, too: that makes no row old. Returns None, or an op in a TF1 graph."""
        self._seconds = check.real(self, "seconds", seconds, low=0, high=1e12)
        moved = [variable.move_clock(self.time_ms) for variable in self._variables]
        ops = [op for op in moved if op is not None]
        if not ops:
            return None
        import tensorflow as tf

        return tf.group(ops)

    def advance(self, seconds: float) -> Any:
        """Moves the clock forward by `seconds` (>= 0)."""
        return self.set(self._seconds + check.real(self, "seconds", seconds, low=0, high=1e12))

    def attach(self, variable: "EmbeddingVariable") -> None:
        """A variable's constructor calls this; the variable is not kept alive by it."""
        self._variables.add(variable)
