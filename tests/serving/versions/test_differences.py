"""A version that does not take the requests of the one that serves is refused, unless somebody says it is meant."""

import dataclasses
import logging

import pytest

from tests.serving.versions.fakes import FakeLoader, answer, errors, manager, states, write
from tfctr.errors import VersionRefusedError
from tfctr.serving.signature_info import Input, Output
from tfctr.serving.versions import Specific
from tfctr.serving.versions.differences import of_requests


@dataclasses.dataclass
class Signature:
    inputs: tuple
    outputs: tuple
    optional_inputs: frozenset = frozenset()


def tensor(name, text):
    """ "int64" (of any rank), or "int64 ? 3"."""
    dtype, *dims = text.split()
    shape = tuple(-1 if one == "?" else int(one) for one in dims)
    return Input(name, dtype, shape if dims else None, f"{name}:0")


def signature(outputs="score logit", optional="", **inputs):
    return Signature(
        tuple(tensor(name, text) for name, text in inputs.items()),
        tuple(Output(name, "dense", {"values": tensor(name, "float32 ?")}) for name in outputs.split()),
        frozenset(optional.split()),
    )


OLD = {"serve": signature(user="int64 ?", tags="string ? 3", any="float32")}


def new(**inputs):
    return {"serve": signature(**{"user": "int64 ?", "tags": "string ? 3", "any": "float32", **inputs})}


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (OLD, ""),
        ({**OLD, "other": signature(x="float32 ?")}, ""),
        (new(outputs="score logit more"), ""),
        (new(optional="age", age="int64 ?"), ""),
        (new(tags="string ? ?", any="float32 ?"), ""),  # what fits a size fits any
        ({}, "signature 'serve' is gone"),
        (new(age="int64 ?"), "signature 'serve': inputs are new (age)"),
        ({"serve": signature(user="int64 ?", any="float32")}, "signature 'serve': inputs are gone (tags)"),
        (new(user="string ?"), "signature 'serve': input 'user' is string [?], was int64 [?]"),
        (new(user="int64 ? 1"), "signature 'serve': input 'user' is int64 [?, 1], was int64 [?]"),
        (new(tags="string ? 4"), "signature 'serve': input 'tags' is string [?, 4], was string [?, 3]"),
        (new(any="int64"), "signature 'serve': input 'any' is int64, was float32"),
        (new(outputs="score"), "signature 'serve': outputs are gone (logit)"),
        (new(outputs="logit", age="int64 ?"), "signature 'serve': inputs are new (age), outputs are gone (score)"),
    ],
)
def test_differences(after, told):
    assert of_requests(OLD, after) == told


def test_an_input_that_must_be_given_now_and_outputs_of_another_kind():
    lacked = {"serve": signature(optional="user", user="int64 ?", tags="string ? 3", any="float32")}
    assert of_requests(lacked, OLD) == "signature 'serve': inputs may not be left out any more (user)"
    ragged = new()
    ragged["serve"].outputs = (
        *ragged["serve"].outputs[:1],
        dataclasses.replace(ragged["serve"].outputs[1], kind="ragged"),
    )
    assert of_requests(OLD, ragged) == "signature 'serve': output 'logit' is ragged, was dense"
    wide = new()
    wide["serve"].outputs = (
        Output("score", "dense", {"values": tensor("score", "float64 ?")}),
        *wide["serve"].outputs[1:],
    )
    assert of_requests(OLD, wide) == "signature 'serve': output 'score' is float64 [?], was float32 [?]"


class Changing(FakeLoader):
    """Versions whose text ends in "!" lack the signature."""

    def __call__(self, folder, number, options):
        made = super().__call__(folder, number, options)
        made.signatures = {} if made.text.endswith("!") else OLD
        return made


def served(tmp_path, **spec):
    write(tmp_path, 1, "one")
    made = manager(tmp_path, Changing(), **spec)
    made.poll()
    write(tmp_path, 2, "two!")
    return made


def test_a_version_that_does_not_fit_is_refused_with_its_reason(tmp_path):
    made = served(tmp_path)
    for _ in range(3):
        made.poll()
    assert answer(made) == "one" and states(made) == {1: "AVAILABLE", 2: "END"}
    said = errors(made)[2]
    assert "does not take the requests of version 1, which serves: signature 'serve' is gone" in said
    assert "tfctr admin load m 2 --accept-changed-inputs" in said and made.load_failures() == {"m": 1}
    for change in (made.load, made.reload):
        with pytest.raises(VersionRefusedError, match="signature 'serve' is gone"):
            change("m", 2)
    assert answer(made) == "one"


def test_somebody_may_say_that_it_is_meant(tmp_path, caplog):
    made = served(tmp_path)
    made.poll(), made.poll()
    with caplog.at_level(logging.WARNING, "tfctr"):
        made.load("m", 2, accept_changed_inputs=True)
    assert answer(made) == "two!" and errors(made) == {}
    assert "version 2 does not take the requests of version 1" in caplog.text
    made.rollback("m")  # whoever goes back knows what to
    assert answer(made) == "one"
    made.load("m")  # was accepted before
    assert answer(made) == "two!"
    made.rollback("m")
    write(tmp_path, 2, "two, but different!")  # nobody has seen this one
    with pytest.raises(VersionRefusedError, match="signature 'serve' is gone"):
        made.load("m")
    made.load("m", 2, accept_changed_inputs=True)
    assert answer(made) == "two, but different!"


def test_a_model_may_be_configured_to_accept_it(tmp_path):
    made = served(tmp_path, accept_changed_inputs=True)
    made.poll(), made.poll()
    assert answer(made) == "two!"


def test_a_version_that_is_replaced_in_place_must_fit_too(tmp_path):
    made = served(tmp_path)
    write(tmp_path, 1, "other!")
    made.poll(), made.poll()
    assert answer(made) == "one" and "signature 'serve' is gone" in errors(made)[1]


def test_versions_beside_each_other_may_differ(tmp_path):
    """What a configuration names is meant; only what takes over must fit."""
    made = served(tmp_path, policy=Specific((1, 2)), labels={"old": 1})
    write(tmp_path, 1, "one")
    made.load("m", 1)
    fresh = manager(tmp_path, Changing(), policy=Specific((1, 2)))
    fresh.poll()
    assert states(fresh) == {1: "AVAILABLE", 2: "AVAILABLE"} and answer(fresh) == "two!"
