"""KServe's version is a text of any length."""

import pytest

from tfctr.errors import InputError
from tfctr.serving.server.model_choice import version_choice


def test_version_choice():
    assert version_choice("m", "") == (None, None)
    assert version_choice("m", "canary") == (None, "canary")
    assert version_choice("m", "0" * 30 + "7") == (7, None)
    assert version_choice("m", str(2**63 - 1)) == (2**63 - 1, None)
    for text in (str(2**63), "9" * 5000):
        with pytest.raises(InputError, match="out of range"):
            version_choice("m", text)
