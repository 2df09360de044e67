"""Runnable examples; ``python -m examples.demo`` is ``make demo``."""
