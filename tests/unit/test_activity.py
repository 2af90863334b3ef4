"""The log line that names the busiest clients."""

import msgspec

from hubsub.control.activity import NAMED_MAX, busiest
from hubsub.node.status import Client

from .played_node import client_row


def client(number: int, out: float) -> Client:
    return msgspec.convert(client_row(number) | {"node": "one", "messages_out_60s": out}, Client)


def test_only_clients_that_move_something_are_named_and_only_a_few() -> None:
    assert busiest([client(1, 0.0)]) == []
    named = busiest([client(i, 9.0) for i in range(20)])
    assert [c["conn"] for c in named] == list(range(NAMED_MAX))
