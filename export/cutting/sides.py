"""Which side an input of a tower is on."""

from __future__ import annotations

from export.cutting.rows import USERS, FormRows
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts
from graph_opt.view import canonical


def side_of(item: GraphItem, facts: Facts, rows: FormRows, tensor: str, row_to_user: str) -> str:
    """One of ``export.tower.SIDES``. row_to_user: that tensor of a split form, "" in others."""
    if row_to_user and canonical(tensor) == row_to_user:
        return "row_to_user"
    if rows.whose(tensor) == USERS:
        return "user"
    is_fed = facts.view.node(tensor).op in ("Placeholder", "PlaceholderWithDefault")
    return "dense" if is_fed else "item"
