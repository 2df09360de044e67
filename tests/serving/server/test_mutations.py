"""Requests as a broken client or an attacker sends them: each gets its protocol's own error, and the server goes on.

``python -m tests.serving.server.mutations`` sends thousands of them to a server in a process of its own.
"""

import collections

from tests.serving.server.mutations import Client, attack, valid_requests
from tests.serving.server.test_server import running


def test_mutated_requests_are_refused_and_the_next_one_is_answered(grpc_models):
    answered = collections.Counter()
    with running(grpc_models) as server:
        client = Client(server.endpoints.grpc, server.endpoints.http)
        for one, status, _ in attack(client, 220, seed=1):
            answered[one.where, status in ("OK", 200)] += 1
        client.close()
    refused = {where for where, good in answered if not good}
    assert refused == {one.where for one in valid_requests()}, "a mutation of each was refused"
