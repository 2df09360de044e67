"""The conversion report as one self-contained HTML page, for a person who does not know the code."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jinja2

from tfctr.bundle import dense_summary, summary
from tfctr.bundle.summary import count_words, node_words, size_words

_TEMPLATE = pathlib.Path(__file__).with_name("report_page.html.j2")

# What each id step means, for people; {0}, {1} are the step's arguments.
_STEP_WORDS = {
    "cast": "as {0}",
    "mod": "modulo {0}",
    "mul": "times {0}",
    "add": "plus {0}",
    "divide": "divided by {0}",
    "addcol": "plus an offset per column",
    "wrap_negative": "negative ids count from the end",
    "as_string": "as text",
    "hash_fast": "hashed into {0} buckets",
    "hash_strong": "hashed (keyed) into {0} buckets",
    "bucketize": "put into buckets by boundaries",
    "vocab": "looked up in vocabulary {0}",
    "vocab_oov": "looked up in vocabulary {0}, unknown keys hashed into {2} buckets",
    "select_negative": "negative ids become {0}",
    "select_out_of_range": "ids outside [{0}, {1}) become {2}",
    "prune_negative": "negative ids dropped",
    "prune_equal": "values equal to '{0}' dropped",
}


def step_words(text: str) -> str:
    """One step of a lookup's ``steps`` (``kind:arg;arg``) in plain words."""
    kind, _, args = text.partition(":")
    values = args.split(";") if args else []
    try:
        return _STEP_WORDS[kind].format(*values)
    except (KeyError, IndexError):
        return text


def combiner_words(lookup: Mapping[str, Any]) -> str:
    """How the rows of one feature become its output, in plain words."""
    combiner = lookup.get("combiner") or "none"  # defaults of a spec are not written
    if combiner == "none":
        return "one row per id"
    words = {"sum": "sum", "mean": "mean", "sqrtn": "sum / sqrt(n)"}[combiner]
    return words + (" (weighted)" if lookup.get("weights") else "")


def render_report(manifest: Mapping[str, Any]) -> str:
    """The page for ``manifest`` (see docs/bundle_format.md); everything it needs is inside it."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    words = {"step_words": step_words, "size_words": size_words, "combiner_words": combiner_words}
    environment.filters |= words | {
        "node_words": node_words,
        "count_words": count_words,
        "cache_words": dense_summary.cache_words,
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        m=manifest,
        splits=summary.splits(manifest),
        placement=summary.placement(manifest),
        transfers=summary.transfers(manifest),
        crossings=summary.crossing_counts(manifest),
        tables=summary.tables(manifest),
        towers=dense_summary.towers(manifest),
        candidates=summary.CANDIDATES,
    )
