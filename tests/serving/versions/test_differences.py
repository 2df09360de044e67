"""What a new version does not take any more is said when it takes over."""

import dataclasses
import logging

import pytest

from tests.serving.versions.fakes import FakeLoader, answer, manager, write
from tfctr.serving.signature_info import Input, Output
from tfctr.serving.versions.differences import of_requests


@dataclasses.dataclass
class Signature:
    inputs: tuple
    outputs: tuple


def signature(outputs="score", **inputs):
    one = tuple(Input(name, dtype, (-1,), f"{name}:0") for name, dtype in inputs.items())
    return Signature(one, tuple(Output(name, "dense", {}) for name in outputs.split()))


OLD = {"serve": signature("score logit", user="int64", tags="string")}


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (OLD, ""),
        ({**OLD, "other": signature(x="float32")}, ""),
        ({"serve": signature("score logit more", user="int64", tags="string")}, ""),
        ({}, "signature 'serve' is gone"),
        (
            {"serve": signature(user="string", age="int64")},
            "signature 'serve': inputs are gone (tags), inputs are new (age), input 'user' is string, was int64, "
            "outputs are gone (logit)",
        ),
    ],
)
def test_differences(new, told):
    assert of_requests(OLD, new) == told


def test_the_log_says_it_when_the_version_takes_over(tmp_path, caplog):
    loader = FakeLoader()
    write(tmp_path, 1, "one")
    made = manager(tmp_path, loader)
    made.poll()
    loader.made[0].signatures = OLD
    write(tmp_path, 2, "two")
    with caplog.at_level(logging.WARNING, "tfctr"):
        made.poll(), made.poll()
    assert answer(made) == "two"
    assert "version 2 does not take all requests of version 1: signature 'serve' is gone" in caplog.text
