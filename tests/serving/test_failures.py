"""Errors of requests as every front names them."""

from types import SimpleNamespace

import pytest

from tfctr import errors
from tfctr.serving import failures


@pytest.mark.parametrize(
    ("code", "kind", "http"),
    [
        ("INVALID_ARGUMENT", errors.InputError, 400),
        ("DEADLINE_EXCEEDED", errors.DeadlineError, 504),
        ("RESOURCE_EXHAUSTED", errors.OverloadedError, 429),
        ("UNAVAILABLE", errors.UnavailableError, 503),
        ("CANCELLED", errors.CancelledError, 499),
        ("NOT_FOUND", errors.NotFoundError, 404),
        ("INTERNAL", errors.InternalError, 500),
        ("UNIMPLEMENTED", errors.UnimplementedError, 501),
    ],
)
def test_there_and_back(code, kind, http):
    error = failures.error_of(SimpleNamespace(code=code, message="why", stage="queue"))
    assert type(error) is kind and str(error) == "why" and failures.stage_of(error) == "queue"
    assert failures.code_of(error) == code and failures.http_code_of(error) == http


def test_errors_that_are_not_of_requests():
    assert failures.code_of(errors.UsageError("x")) == "INVALID_ARGUMENT"
    assert failures.code_of(errors.CorruptFileError("x")) == "INTERNAL"
    refused = errors.VersionRefusedError("x")
    assert failures.code_of(refused) == "FAILED_PRECONDITION" and failures.http_code_of(refused) == 412
    assert failures.code_of(KeyError("x")) is None and failures.http_code_of(KeyError("x")) == 500
    assert failures.stage_of(errors.InputError("x")) == ""
    assert failures.error_of(SimpleNamespace(code="NEW", message="m", stage="")).exit_code == 1


def test_bad_requests_name_their_model():
    assert failures.with_model("INVALID_ARGUMENT", "'instances': expected a list", "m") == (
        "model 'm': 'instances': expected a list"
    )
    named = "model 'm' version 3, signature 's': input 'x' is missing"
    assert failures.with_model("INVALID_ARGUMENT", named, "m") == named
    assert failures.with_model("INVALID_ARGUMENT", "the message does not parse", "") == "the message does not parse"
    assert failures.with_model("RESOURCE_EXHAUSTED", "try again later", "m") == "try again later"
    assert len(failures.with_model("INVALID_ARGUMENT", "why", "m" * 9000)) < 200
