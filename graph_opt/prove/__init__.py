"""Proving lookup candidates by execution, over surrogate tables, on adversarial inputs.

``prove(item, candidate)`` for one, ``prove_all(item, candidates)`` for many (shared sessions; 200 in seconds).
"""

from graph_opt.prove.prover import prove, prove_all

__all__ = ["prove", "prove_all"]
