"""Specs for tests of the prover."""

from graph_opt.lookup_spec import LookupSpec


def spec(**changes) -> LookupSpec:
    """A safe sparse mean over a table [100, 4]; ``changes`` replace fields."""
    fields = {
        "name": "f", "table": 0, "table_rows": 100, "table_width": 4, "table_dtype": "float32", "form": "sparse",
        "ids": "ids:0", "rows": "indices:0", "shape": "shape:0",
        "combiner": "mean", "empty": "zeros", "sort_rows": True,
    }  # fmt: skip
    return LookupSpec(**{**fields, **changes})


def dense(**changes) -> LookupSpec:
    """A plain gather [B, T] from a table [100, 4]."""
    plain = {"form": "dense", "rows": None, "shape": None, "combiner": "none", "empty": "natural", "sort_rows": False}
    return spec(**{**plain, **changes})
