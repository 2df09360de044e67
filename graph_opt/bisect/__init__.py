"""``tfctr bisect``: which pass, which of its rewrites and which lookup make a converted model differ from the original.

``outputs`` runs the pipeline pass by pass and compares; ``speed`` times every step against the one before; ``narrow``
finds the smallest set of rewrites, lookups or rows that still shows it; ``cut`` and ``reproduction`` write it down as a
small model that anyone can run.
"""

from graph_opt.bisect.outputs import bisect_outputs
from graph_opt.bisect.report import Findings
from graph_opt.bisect.speed import bisect_speed

__all__ = ["Findings", "bisect_outputs", "bisect_speed"]
