"""Specs as data and as text."""

import pytest

from graph_opt.lookup_spec import CopySpec, OutputSpec, Placement, Step, spec_text
from tests.graph_opt.prove.specs import dense, spec


def test_text_of_a_group():
    one = spec(name="user id", steps=(Step("prune_negative"), Step("mod", ("100",))))
    bind = {"ids:0": "arg:0", "indices:0": "arg:1", "shape:0": "arg:2", "x:0": "in:3"}
    text = spec_text(
        [(one, Placement(0, 0))],
        [OutputSpec(form="rows", columns=6, dtype="float32")],
        bind,
        [(CopySpec(name="x", source="x:0", width=2), Placement(0, 4))],
    )
    lines = text.splitlines()
    assert lines[0] == "tfctr-lookup 1"
    assert lines[1] == "output 0 form=rows columns=6 dtype=float32"
    assert "name=user%20id " in lines[2]
    assert "steps=prune_negative|mod:100 " in lines[2]
    assert lines[2].endswith("ids=arg:0 rows=arg:1 shape=arg:2")
    assert lines[3] == "copy name=x source=in:3 width=2 output=0 column=4"


def test_any_bytes_survive_in_arguments():
    text = b"a;b|c:d \xff\xc3\xa9".decode("utf-8", "surrogateescape")
    assert Step("prune_equal", (text,)).text() == "prune_equal:a%3Bb%7Cc%3Ad%20%FF%C3%A9"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"combiner": "max"}, "combiner 'max' is not one of"),
        ({"form": "csr"}, "form 'csr' is not one of"),
        ({"combiner": "none"}, "needs a reducing combiner"),
    ],
)
def test_illegal_specs(changes, message):
    with pytest.raises(ValueError, match=message):
        spec(**changes)


def test_illegal_step():
    with pytest.raises(ValueError, match="unknown step 'sort'"):
        Step("sort")


def test_sources_and_width():
    assert spec(weights="w:0").sources() == ("ids:0", "indices:0", "shape:0", "w:0")
    assert dense(ids_per_row=3).width == 12


def test_infinite_numbers_are_no_spec():
    with pytest.raises(ValueError, match="not a finite number"):
        spec_text(
            [(spec(max_norm=float("inf")), Placement(0, 0))], [], {"ids:0": "", "indices:0": "", "shape:0": ""}
        )  # fmt: skip
