"""``tfctr.load_table`` of a bundle: which file, its storage and its overlay; what it says where it can't."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfctr
from tests.bundle.test_manifest import content, write
from tfctr.bundle import manifest as manifests
from tfctr.core import library
from tfctr.errors import CorruptFileError, UsageError

native = library.native()
ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
KEYS = np.array([7, -1, 2**62, 0])


def entry(folder: Path, file: str, name: str, **changes: Any) -> dict[str, Any]:
    info = native.file_info(folder / file)
    told = {"file": file, "bytes": info["file_bytes"], "name": name, "fingerprint": info["fingerprint"]}
    return {"dtype": info["dtype"], "shape": list(info["shape"]), "kind": info["kind"], **told, **changes}


def bundle(folder: Path, *files: dict[str, Any]) -> Path:
    return write(folder, manifests.dump(content(store={"shared_name": "s", "files": list(files)})))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with a hash file and an overlay of it, a static table and a narrow one."""
    native.build_hash_table(tmp_path / "h", "user", KEYS, ROWS)
    options = {"hashed": True, "dtype": "float32", "width": 3}
    native.write_delta_file(tmp_path / "d", "user", np.array([-1, 5]), ROWS[:2] + 10, np.array([7]), **options)
    native.build_overlay(tmp_path / "o", tmp_path / "h", None, [tmp_path / "d"])
    native.write_table(tmp_path / "s", "item", ROWS)
    native.narrow_table(tmp_path / "s", "int8", tmp_path / "n")
    return tmp_path


def test_tables_of_a_bundle(tables: Path) -> None:
    path = bundle(
        tables,
        entry(tables, "s", "item"),
        entry(tables, "n", "small", storage="int8", stands_for={"dtype": "float32", "shape": [4, 3]}),
        entry(tables, "h", "user"),
        entry(tables, "o", "user", base=2),
    )
    np.testing.assert_array_equal(tfctr.load_table(path, "item").lookup([3, 0]), ROWS[[3, 0]])
    small = tfctr.load_table(path, "small")
    np.testing.assert_allclose(small.rows(), ROWS, atol=0.005)
    assert (small.info["storage"], small.dim) == ("int8", 3)
    user = tfctr.load_table(path, "user")
    zeros = np.zeros(3, np.float32)
    np.testing.assert_array_equal(user.lookup([7, -1, 5, 0, 99]), [zeros, ROWS[0] + 10, ROWS[1] + 10, ROWS[3], zeros])
    assert user.contains([7, -1, 5, 0, 99]).tolist() == [False, True, True, True, False]
    assert sorted(user.keys().tolist()) == [-1, 0, 5, 2**62]
    assert len(user) == 4
    np.testing.assert_array_equal(user.rows(), user.lookup(user.keys()))
    assert (user.info["overlay"]["rows"], user.info["overlay"]["removed"]) == (2, 1)
    # A file alone is looked up without the overlay.
    np.testing.assert_array_equal(tfctr.load_table(path / "h").lookup(KEYS), ROWS)


def test_which_table(tables: Path) -> None:
    with pytest.raises(UsageError, match=r"say which table \(name=\); it has 'item', 'user'"):
        tfctr.load_table(bundle(tables, entry(tables, "s", "item"), entry(tables, "h", "user")))
    with pytest.raises(UsageError, match="no table of the name 'x'; it has 'item', 'user'"):
        tfctr.load_table(tables, "x")


def test_the_only_table_needs_no_name(tables: Path) -> None:
    path = bundle(tables, entry(tables, "h", "user"))
    assert tfctr.load_table(path).name == "user"
    (path / "h").write_bytes((path / "h").read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="the manifest says"):
        tfctr.load_table(path)
