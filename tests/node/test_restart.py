"""The rooms that a node restores after a clean stop and after SIGKILL, by durability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.raw import Connection

from node.home import Home, home

DURABLE = {"name": "kept", "match": ["kept:*"], "durability": "durable", "history": {"bytes": "64MiB"}}
REPLICATED = {"name": "live", "match": ["live:*"], "durability": "replicated", "history": {"bytes": "64MiB"}}
EPHEMERAL = {"name": "brief", "match": ["brief:*"], "history": {"messages": 1_000}}


@pytest.fixture
def one(needs: Callable[..., None], data: Path) -> Iterator[Home]:
    needs("hubsub-core")
    with home(data, classes=[DURABLE, REPLICATED, EPHEMERAL]) as one:
        yield one


def publish(connection: Connection, room: str, count: int, first: int = 1) -> None:
    for n in range(first, first + count):
        connection.command("PUBLISH", room, n)
    assert all(frame.kind == ":" for frame in connection.read_many(count))


def history(connection: Connection, room: str) -> list[tuple[str, int, bytes]]:
    """Epoch, seq and payload of each record."""
    rows = connection.ask("HUBSUB", "HISTORY", room, "COUNT", 10_000)
    assert isinstance(rows, list), rows
    positions = [row[0].decode().partition("-") for row in rows]
    return [(epoch, int(seq), row[4]) for (epoch, _, seq), row in zip(positions, rows, strict=True)]


def resumed(one: Home, room: str, position: str) -> tuple[str, int, list[Any]]:
    """The reply to HUBSUB SUBSCRIBE FROM: the room's position and whether it recovered; and the records
    replayed before the next PING reply."""
    with one.server.connect(3) as connection:
        assert connection.ask("HUBSUB", "POSITIONS", "ON") == b"OK"
        answer = connection.ask("HUBSUB", "SUBSCRIBE", room, "FROM", position)
        assert isinstance(answer, list)
        last = int(answer[3].decode().partition("-")[2])
        replayed: list[Any] = []
        if answer[4]:
            while not replayed or int(replayed[-1][3].decode().partition("-")[2]) < last:
                replayed.append(connection.read().plain())
        return answer[3].decode(), answer[4], replayed


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_durable_room_goes_on_in_its_epoch_and_an_ephemeral_one_begins_anew(one: Home, end: str) -> None:
    with one.server.connect() as connection:
        publish(connection, "brief:a", 5)
        brief = history(connection, "brief:a")[0][0]
        publish(connection, "kept:a", 500)
        (epoch, _, _), *_ = before = history(connection, "kept:a")
    getattr(one, end)()
    one.start()
    with one.server.connect() as connection:
        assert history(connection, "kept:a") == before == [(epoch, n, b"%d" % n) for n in range(1, 501)]
        publish(connection, "kept:a", 10, first=501)
        assert history(connection, "kept:a") == [(epoch, n, b"%d" % n) for n in range(1, 511)]
    _, recovered, replayed = resumed(one, "kept:a", f"{epoch}-490")
    assert recovered == 1 and [message[2] for message in replayed] == [b"%d" % n for n in range(491, 511)]
    with one.server.connect() as connection:
        assert history(connection, "brief:a") == []
    assert resumed(one, "brief:a", f"{brief}-5")[1] == 0


def test_a_replicated_room_keeps_its_epoch_over_a_clean_stop(one: Home) -> None:
    with one.server.connect() as connection:
        publish(connection, "live:a", 500)
        epoch = history(connection, "live:a")[0][0]
    one.restart()
    with one.server.connect() as connection:
        publish(connection, "live:a", 1, first=501)
        assert history(connection, "live:a") == [(epoch, n, b"%d" % n) for n in range(1, 502)]
    assert resumed(one, "live:a", f"{epoch}-500")[:2] == (f"{epoch}-501", 1)


def test_a_replicated_room_begins_a_new_epoch_after_a_kill_and_says_so_to_who_resumes(one: Home) -> None:
    """Acknowledged records in memory may be lost, so no client may resume as if none were."""
    with one.server.connect() as connection:
        publish(connection, "live:a", 500)
        old = history(connection, "live:a")[0][0]
    one.restart(kills=True)
    last, recovered, _ = resumed(one, "live:a", f"{old}-500")
    assert recovered == 0 and last.partition("-")[0] != old
    with one.server.connect() as connection:
        reply = connection.call("HUBSUB", "HISTORY", "live:a", "AFTER", f"{old}-500")
        assert reply.kind == "-" and str(reply.value).startswith("b'NOTRECOVERED ")
        publish(connection, "live:a", 3, first=1001)
        rows = history(connection, "live:a")
        survived = [row for row in rows if row[0] == old]
        assert survived == [(old, n, b"%d" % n) for n in range(1, len(survived) + 1)], (
            "a beginning, unchanged"
        )
        (new,) = {epoch for epoch, _, _ in rows} - {old}
        assert rows[len(survived) :] == [(new, n, b"%d" % (1000 + n)) for n in range(1, 4)]
    assert resumed(one, "live:a", f"{old}-3")[1] == 0, "the old epoch stays over"
    assert resumed(one, "live:a", f"{new}-1")[:2] == (f"{new}-3", 1)
    one.restart(kills=True)
    assert resumed(one, "live:a", f"{new}-1")[1] == 0, "each kill ends an epoch"


def test_rooms_of_many_starts_have_epochs_of_their_own(one: Home) -> None:
    """No epoch is reused, whatever was lost."""
    epochs: list[str] = []
    for n in range(2):
        with one.server.connect() as connection:
            for room in (f"kept:{n}", f"live:{n}", f"brief:{n}"):
                publish(connection, room, 1)
                epochs.append(history(connection, room)[0][0])
        one.restart(kills=True)
    assert len(set(epochs)) == len(epochs) == 6


def test_a_second_node_on_the_same_directory_is_refused_and_the_first_serves_on(one: Home) -> None:
    from hubsub.errors import StartError

    first = one.server
    with pytest.raises(StartError, match="data directory"):
        one.start()
    with first.connect() as connection:
        publish(connection, "kept:a", 3)
        assert len(history(connection, "kept:a")) == 3


def test_a_start_that_is_refused_for_its_classes_ends_no_epoch(
    needs: Callable[..., None], data: Path
) -> None:
    needs("hubsub-core")
    from hubsub.errors import StartError

    classes = [DURABLE, REPLICATED]
    with home(data, classes=classes) as one:
        with one.server.connect() as connection:
            publish(connection, "live:a", 5)
            before = history(connection, "live:a")
        one.stop()
        classes.remove(REPLICATED)
        with pytest.raises(StartError, match="has a log of class live"):
            one.start()
        classes.append(REPLICATED)
        one.start()
        with one.server.connect() as connection:
            publish(connection, "live:a", 1, first=6)
            epoch = before[0][0]
            assert history(connection, "live:a") == [*before, (epoch, 6, b"6")]
