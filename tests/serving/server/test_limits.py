"""Limits, the gate, and tokens."""

import dataclasses
import re
import threading

import pytest

from tfctr.errors import OverloadedError, UsageError
from tfctr.serving.server.auth import AccessError, Auth
from tfctr.serving.server.limits import Bodies, Gate, Limits


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "7", None])
def test_a_limit_is_a_positive_whole_number(value):
    with pytest.raises(UsageError, match="max_rows"):
        Limits(max_rows=value)


def test_defaults_are_those_of_the_documentation(repo_root):
    table = (repo_root / "docs/protocols.md").read_text().split("### Limits")[1].split("### ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.M))
    units = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
    told = {}
    for name, text in rows.items():
        number, _, unit = text.replace(",", "").partition(" ")
        told[name] = int(number) * units.get(unit, 1)
    assert told == dataclasses.asdict(Limits())


def test_all_bodies_together_must_have_room_for_one():
    with pytest.raises(UsageError, match="max_total_body_bytes is 1000, expected at least max_body_bytes, 2000"):
        Limits(max_body_bytes=2000, max_total_body_bytes=1000)


def test_bodies_are_counted_to_the_byte():
    bodies = Bodies(100)
    bodies.take(60), bodies.take(40), bodies.take(0)
    with pytest.raises(OverloadedError, match="more than 100 bytes.*max_total_body_bytes"):
        bodies.take(1)
    bodies.give(60)
    bodies.take(60)
    assert (bodies.held, bodies.refused) == (100, 1)


def test_the_gate_is_exact_with_many_threads():
    gate = Gate(10)
    start = threading.Barrier(8)
    entered = []

    def enter():
        start.wait()
        entered.extend(gate.enter() for _ in range(20))

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered.count(True) == gate.inside == 10
    gate.leave()
    assert gate.enter() and not gate.enter()
    assert "10 requests" in gate.message()


def denied(check, *arguments):
    with pytest.raises(AccessError) as caught:
        check(*arguments)
    return caught.value.code


def test_tokens():
    open_to_all = Auth()
    open_to_all.check(None)
    open_to_all.check_admin(None)
    assert denied(open_to_all.check_public_admin, "Bearer x", "load") == "PERMISSION_DENIED"
    auth = Auth(token="serving-token", admin_token="admin-token")
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer serving-toke",
        "Basic serving-token",
        "serving-token",
        b"\xff",
    ):
        assert denied(auth.check, wrong) == "UNAUTHENTICATED"
        assert denied(auth.check_admin, wrong) == "UNAUTHENTICATED"
        assert denied(auth.check_public_admin, wrong, "load") == "PERMISSION_DENIED"
    auth.check("bearer serving-token")
    auth.check(b"Bearer admin-token")
    auth.check_admin("Bearer admin-token")
    auth.check_public_admin("Bearer admin-token", "load")
    assert denied(auth.check_admin, "Bearer serving-token") == "UNAUTHENTICATED"
    assert denied(auth.check_public_admin, "Bearer serving-token", "load") == "PERMISSION_DENIED"
    assert "token" not in repr(auth)


@pytest.mark.parametrize("token", ["", "short", "with a space", "caf\xe9-caf\xe9", "line\nbreak"])
def test_tokens_that_are_none(token):
    with pytest.raises(UsageError, match="admin_token"):
        Auth(admin_token=token)
