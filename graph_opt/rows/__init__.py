"""How each tensor of a flat graph relates to the rows of the batch (see ``kinds``)."""

from graph_opt.rows.analysis import RowFacts, rows_of_signature
from graph_opt.rows.kinds import Kind

__all__ = ["Kind", "RowFacts", "rows_of_signature"]
