"""Replies keep their order, however late an earlier one is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from clients.raw import encode
from clients.servers import Server

Start = Callable[..., Server]

CLASSES = [
    {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 40},
    {"name": "slower", "match": ["slower:*"], "commit_delay_ms": 90, "history": {"messages": 100}},
]


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, start: Start) -> Server:
    """A node with some rooms that commit late."""
    return start(request.param, classes=CLASSES)


def test_a_publish_that_commits_late_is_not_overtaken(server: Server) -> None:
    with server.connect() as connection:
        commands, expected = [], []
        for n in range(20):
            commands += [
                encode("PUBLISH", f"slower:{n}", n),
                encode("ECHO", n),
                encode("PUBLISH", f"fast:{n}", n),
            ]
            commands += [encode("PUBLISH", f"slow:{n}", n), encode("NOSUCH"), encode("PING", n)]
            expected += [0, b"%d" % n, 0, 0, "error", b"%d" % n]
        connection.send(b"".join(commands))
        replies = [frame.plain() if frame.kind != "-" else "error" for frame in connection.read_many(120)]
        assert replies == expected


def test_a_transaction_with_late_commits_answers_in_order(server: Server) -> None:
    with server.connect() as subscriber, server.connect() as connection:
        subscriber.command("SUBSCRIBE", "slow:a", "fast:a", "slower:a")
        subscriber.read_many(3)
        transaction = [("MULTI",), ("PUBLISH", "slower:a", 1), ("ECHO", "x"), ("PUBLISH", "fast:a", 2)]
        transaction += [("PUBLISH", "slow:a", 3), ("EXEC",), ("PING",)]
        connection.send(b"".join(encode(*command) for command in transaction))
        replies = [frame.plain() for frame in connection.read_many(7)]
        assert replies == [b"OK", *[b"QUEUED"] * 4, [1, b"x", 1, 1], b"PONG"]
        assert sorted(f.plain()[2] for f in subscriber.read_many(3)) == [b"1", b"2", b"3"]  # type: ignore[index]


def test_records_of_a_late_room_keep_their_order(server: Server) -> None:
    with server.connect() as subscriber, server.connect() as one, server.connect() as two:
        subscriber.ask("SUBSCRIBE", "slow:a")
        for n in range(100):
            one.command("PUBLISH", "slow:a", f"one-{n}")
            two.command("PUBLISH", "slow:a", f"two-{n}")
        payloads = [frame.plain()[2] for frame in subscriber.read_many(200)]  # type: ignore[index]
        for who in (b"one", b"two"):
            mine = [payload for payload in payloads if payload.startswith(who)]
            assert mine == [b"%b-%d" % (who, n) for n in range(100)]
        assert [f.plain() for f in one.read_many(100) + two.read_many(100)] == [1] * 200


def test_a_record_is_neither_delivered_nor_read_before_it_is_committed(server: Server) -> None:
    with server.connect() as connection, server.connect() as reader:
        connection.command("PUBLISH", "slower:a", "x")
        seen = reader.ask("HUBSUB", "HISTORY", "slower:a")
        assert connection.read().plain() == 0
        assert seen == []
        rows = reader.ask("HUBSUB", "HISTORY", "slower:a")
        assert isinstance(rows, list) and [row[4] for row in rows] == [b"x"]


def test_a_client_that_leaves_before_its_commit_harms_nobody(server: Server) -> None:
    with server.connect() as subscriber:
        subscriber.ask("SUBSCRIBE", "slow:a")
        for n in range(20):
            with server.connect() as connection:
                connection.send(encode("PUBLISH", "slow:a", n) + encode("ECHO", "y"))
                connection.ask("PING") if n % 2 else None
        with server.connect() as last:
            assert last.ask("PUBLISH", "slow:a", "end") == 1
        payloads: list[bytes] = []
        while not payloads or payloads[-1] != b"end":
            payloads.append(subscriber.read().plain()[2])  # type: ignore[index]
        assert len(payloads) == len(set(payloads))
        assert {b"%d" % n for n in range(1, 20, 2)} <= set(payloads), "who waited for it published"


def test_subscribe_and_publish_from_one_pipeline_stay_in_order(server: Server) -> None:
    with server.connect(3) as connection:
        commands = []
        for n in range(50):
            commands += [encode("SUBSCRIBE", f"c{n}"), encode("PUBLISH", f"c{n}", n), encode("ECHO", n)]
        connection.send(b"".join(commands))
        frames = [frame.plain() for frame in connection.read_many(200)]
        confirmed = [f for f in frames if isinstance(f, list) and f[0] == b"subscribe"]
        messages = [f for f in frames if isinstance(f, list) and f[0] == b"message"]
        replies = [f for f in frames if not isinstance(f, list)]
        assert confirmed == [[b"subscribe", b"c%d" % n, n + 1] for n in range(50)]
        assert sorted(messages) == sorted([b"message", b"c%d" % n, b"%d" % n] for n in range(50))
        assert replies == [item for n in range(50) for item in (1, b"%d" % n)]
        for n in range(50):
            subscribed = frames.index([b"subscribe", b"c%d" % n, n + 1])
            assert subscribed < frames.index([b"message", b"c%d" % n, b"%d" % n])
            assert subscribed < frames.index(b"%d" % n)
