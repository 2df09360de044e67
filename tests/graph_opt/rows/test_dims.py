"""Sizes in terms of the number of rows."""

import pytest

from graph_opt.rows.dims import ONE, ROWS, Dim, number, of_tensor, product, reshaped, symbol

T = symbol("t")


def test_products_and_quotients() -> None:
    assert product([ROWS, number(3), T]) == Dim(3, 1, ("t",))
    assert Dim(6, 1, ("t",)).over(Dim(2, 1)) == Dim(3, 0, ("t",))
    assert Dim(6, 1).over(Dim(4)) is None
    assert Dim(6).over(ROWS) is None
    assert Dim(6).over(T) is None
    assert Dim(6).over(number(0)) is None
    assert ONE.known and not ROWS.known and not T.known


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((ROWS, number(3), number(4)), (ROWS, number(12)), (ROWS, number(12))),
        ((ROWS, number(3), number(4)), (number(-1), number(4)), (Dim(3, 1), number(4))),
        ((ROWS, number(3), number(4)), (number(-1), number(12)), (ROWS, number(12))),
        ((ROWS, T, number(4)), (number(-1), number(4)), (Dim(1, 1, ("t",)), number(4))),
        ((Dim(1, 1, ("t",)), number(4)), (ROWS, T, number(4)), (ROWS, T, number(4))),
        ((ROWS, T, number(4)), (ROWS, number(-1)), (ROWS, Dim(4, 0, ("t",)))),
        ((ROWS, number(4)), (number(-1), number(3)), None),
        ((ROWS, number(4)), (number(-1), number(-1)), None),
        ((ROWS, number(4)), (ROWS, None), None),
    ],
)
def test_reshape_works_out_the_open_axis(source, target, expected) -> None:  # type: ignore[no-untyped-def]
    assert reshaped(source, target) == expected


def test_unknown_sizes_of_a_tensor_are_symbols_of_it() -> None:
    assert of_tensor("x:0", [None, 3, None], ROWS) == (ROWS, number(3), symbol("x:0#2"))
