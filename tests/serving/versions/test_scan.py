"""Which folders are versions."""

import pytest

from tfctr.errors import UsageError
from tfctr.serving.versions.scan import find_versions
from tfctr.serving.versions.spec import check_label


def test_names_of_folders(tmp_path):
    for name in ("007", "12", "+3", "-4", "1e3", " 6", "٣", "99999999999999999999", str(2**63), "9" * 200, "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "13").write_text("no folder")
    assert find_versions(tmp_path) == {7: tmp_path / "007", 12: tmp_path / "12"}
    (tmp_path / str(2**63 - 1)).mkdir()
    assert max(find_versions(tmp_path)) == 2**63 - 1


@pytest.mark.parametrize("label", ["", "7", "a\nb", "x" * 129])
def test_what_is_no_label(label):
    with pytest.raises(UsageError, match="ranker"):
        check_label("ranker", label)
