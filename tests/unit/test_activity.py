"""The log line that names the busiest clients."""

from hubsub.control.activity import NAMED_MAX, busiest


def client(number: int, out: float) -> dict[str, object]:
    zero = {"messages_in_60s": 0.0, "bytes_out_60s": 0.0, "pending_bytes": 0, "dropped": 0}
    return {"id": number, "addr": "127.0.0.1:1", "name": "", "messages_out_60s": out, **zero}


def test_only_clients_that_move_something_are_named_and_only_a_few() -> None:
    assert busiest([client(1, 0.0)]) == []
    named = busiest([client(i, 9.0) for i in range(20)])
    assert [c["conn"] for c in named] == list(range(NAMED_MAX))
