"""Tables whose tensors are not called as the variable is: Keras' layers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.embedding.inspection.tables import fill, make, save
from tfctr.cli.main import main
from tfctr.embedding.inspection.differences import compare
from tfctr.embedding.inspection.sources import open_source
from tfctr.errors import UsageError


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """One table, saved as two other objects."""
    folder, table = tmp_path_factory.mktemp("own_names"), make("users")
    fill(table, np.arange(50))
    one = tf.train.Checkpoint(layers=tf.train.Checkpoint(table=table)).write(str(folder / "a"))
    other = tf.train.Checkpoint(_misc=table).write(str(folder / "b"))
    return one, other


def test_a_table_by_its_own_name(sides, tmp_path, capsys):
    table = open_source(sides[0]).table("users")
    assert (table.name, table.own_name) == ("layers/table", "users")
    with pytest.raises(UsageError, match=r"no table 'items'; it has 'layers/table' \(users\)"):
        open_source(sides[0]).table("items")
    assert main(["ckpt", "inspect", sides[0], "--table", "users"]) == 0
    assert "layers/table (users): " in capsys.readouterr().out
    assert main(["ckpt", "export", sides[1], str(tmp_path / "users.npz"), "--table", "users"]) == 0
    with np.load(tmp_path / "users.npz") as arrays:
        assert len(arrays["keys"]) == table.rows


@pytest.mark.parametrize("asked", [None, "users", "layers/table", "_misc"])
def test_compared_by_own_names(sides, asked):
    a, b = map(open_source, sides)
    found = compare(a, b, table=asked)
    assert [one.name for one in found.tables] == ["users"] and not found.differs
    assert found.tables[0].rows_a == found.tables[0].rows_b == a.table("users").rows > 0


def test_names_of_tensors_come_first(tmp_path):
    """A table that is called as another one's variable is that table."""
    first, second = make("users"), make("items")
    fill(first, np.arange(50))
    source = open_source(save(tmp_path / "ckpt", users=second, other=first))
    assert source.table("users").own_name == "items" and source.table("users").rows == 0
    assert source.table("items").name == "users"
