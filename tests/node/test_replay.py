"""History and live records join without a gap, and positions are exact."""

from __future__ import annotations

import asyncio
import itertools
import random
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients.raw import TIMEOUT_S, Connection
from clients.servers import Server, hubsub_node, until

from node.crowd import Member

Start = Callable[..., Server]

CHAT = {"name": "chat", "match": ["chat:*"], "history": {"messages": 1_000_000, "bytes": "1GiB"}}
SHORT = {"name": "short", "match": ["short:*"], "history": {"messages": 100}}
ROOMS = [f"chat:{i}" for i in range(8)]
JOINERS = 60
RECORDS_PER_JOINER = 200
"""Records that each room receives while one joiner joins: publishing neither stops nor runs ahead."""


def position(item: list[Any]) -> tuple[str, int]:
    """Epoch and seq of a message."""
    epoch, _, seq = item[-1].decode().partition("-")
    return epoch, int(seq)


class Joiner(Member):
    """Subscribes at a past position of a room that is being published to."""

    room = ""
    first = 0
    """The first expected seq."""

    async def attach(self, *start: Any) -> tuple[int, bool]:
        """Runs HUBSUB SUBSCRIBE; returns the room's current seq and whether everything was recovered."""
        answer = await self.call("HUBSUB", "SUBSCRIBE", self.room, *start)
        assert answer[:3] == [b"subscribe", self.room.encode(), 1]
        return position(answer[:4])[1], bool(answer[4])

    async def check(self, last: int) -> None:
        """Each seq from `first` to `last` arrived once, in order, with its own payload."""
        await self.until(lambda: bool(self.pushes) and position(self.pushes[-1])[1] >= last)
        assert [position(m)[1] for m in self.pushes] == list(range(self.first, last + 1))
        assert [m[2] for m in self.pushes] == [b"%d" % seq for seq in range(self.first, last + 1)]


async def join_while_publishing(server: Server, seed: int) -> None:
    dice = random.Random(seed)
    address = (server.host, server.port)
    publishers = {room: await Member.join(*address) for room in ROOMS}
    seq = dict.fromkeys(ROOMS, 0)
    allowed = 0
    more = asyncio.Condition()

    async def publish(room: str) -> None:
        while seq[room] < JOINERS * RECORDS_PER_JOINER:
            async with more:
                await more.wait_for(lambda: seq[room] < allowed)
            batch = [("PUBLISH", room, n) for n in range(seq[room] + 1, seq[room] + 21)]
            seq[room] += len(batch)
            await publishers[room].pipeline(batch)

    publishing = [asyncio.create_task(publish(room)) for room in ROOMS]
    joiners: list[Joiner] = []
    reader = await Member.join(*address)
    for n in range(JOINERS):
        async with more:
            allowed += RECORDS_PER_JOINER
            more.notify_all()
        joiner = await Joiner.join(*address, ("HUBSUB", "POSITIONS", "ON"))
        joiner.room = dice.choice(ROOMS)
        while not (
            known := await reader.call("HUBSUB", "HISTORY", joiner.room, "COUNT", dice.randint(1, 2000))
        ):
            pass
        oldest = known[0]
        if n % 4 == 0:
            joiner.first = int(oldest[0].partition(b"-")[2]) + 1
            _, recovered = await joiner.attach("FROM", oldest[0])
        elif n % 4 == 1:
            count = dice.randint(0, 3000)
            at, recovered = await joiner.attach("LAST", count)
            joiner.first = max(1, at + 1 - count)
        elif n % 4 == 2:
            _, recovered = await joiner.attach("SINCE", oldest[1])
            await joiner.until(lambda j=joiner: bool(j.pushes))  # type: ignore[misc]
            joiner.first = position(joiner.pushes[0])[1]
            assert joiner.first <= int(oldest[0].partition(b"-")[2]), "none of that millisecond is missing"
        else:
            epoch = oldest[0].partition(b"-")[0]
            joiner.first = 1
            _, recovered = await joiner.attach("FROM", epoch + b"-0")
        assert recovered
        joiners.append(joiner)
    await asyncio.gather(*publishing)
    for joiner in joiners:
        await joiner.check(seq[joiner.room])
    for member in (*joiners, *publishers.values(), reader):
        member.leave()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_replay_and_live_join_without_gap_or_double(start: Start, shards: int) -> None:
    server = start(shards, classes=[CHAT])

    async def bounded() -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await join_while_publishing(server, seed=shards)

    asyncio.run(bounded())
    until(lambda: server.metric("cursors") == 0)


def fill(connection: Connection, room: str, count: int) -> list[bytes]:
    """Publishes 1 … count; returns the position of each."""
    for n in range(1, count + 1):
        connection.command("PUBLISH", room, n)
    connection.read_many(count)
    rows = connection.ask("HUBSUB", "HISTORY", room, "COUNT", count)
    assert isinstance(rows, list)
    return [row[0] for row in rows]


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with two shards and rooms with a long and a short history."""
    needs("hubsub-core")
    with hubsub_node(2, classes=[CHAT, SHORT]) as server:
        yield server


_rooms = itertools.count()


@pytest.fixture
def room() -> str:
    """A room name that no other test uses."""
    return f"chat:{next(_rooms)}"


@pytest.mark.parametrize("count", [1, 7, 1000, 5000])
def test_history_is_read_page_by_page(server: Server, room: str, count: int) -> None:
    with server.connect() as connection:
        positions = fill(connection, room, 1000)
        epoch = positions[0].partition(b"-")[0]
        after, payloads = epoch + b"-0", []
        while page := connection.ask("HUBSUB", "HISTORY", room, "COUNT", count, "AFTER", after):
            assert isinstance(page, list) and len(page) <= count
            payloads += [row[4] for row in page]
            after = page[-1][0]
        assert payloads == [b"%d" % n for n in range(1, 1001)]


def test_history_rows_say_when_where_and_who(server: Server, room: str) -> None:
    with server.connect() as connection:
        seconds = connection.ask("TIME")
        connection.ask("CLIENT", "SETNAME", "me")
        connection.ask("PUBLISH", f"{{{room}}}x", b"\x00\xff")
        rows = connection.ask("HUBSUB", "HISTORY", room)
        assert isinstance(rows, list) and isinstance(seconds, list)
        ((at, ms, topic, publisher, payload),) = rows
        assert at.endswith(b"-1") and (topic, payload) == (b"{%b}x" % room.encode(), b"\x00\xff")
        assert isinstance(ms, int) and ms // 1000 >= int(seconds[0])
        assert isinstance(publisher, bytes) and publisher


def test_the_default_class_has_no_history(server: Server) -> None:
    with server.connect() as connection:
        connection.ask("PUBLISH", "plain", "x")
        assert connection.ask("HUBSUB", "HISTORY", "plain") == []


def test_an_unknown_epoch_is_not_recovered(server: Server, room: str) -> None:
    with server.connect(3) as connection:
        positions = fill(connection, room, 10)
        start = positions[0].removesuffix(b"-1") + b"-0"
        reply = connection.call("HUBSUB", "HISTORY", room, "AFTER", "12345-3")
        assert reply.kind == "-" and isinstance(reply.value, bytes)
        assert reply.value.startswith(b"NOTRECOVERED ") and reply.value.endswith(b" " + start)
        answer = connection.ask("HUBSUB", "SUBSCRIBE", room, "FROM", "12345-3")
        assert answer == [b"subscribe", room.encode(), 1, positions[-1], 0]
        connection.command("PUBLISH", room, "live")
        frames = [frame.plain() for frame in connection.read_many(2)]
        assert [b"message", room.encode(), b"live"] in frames and 1 in frames, "nothing is replayed"


def test_a_position_that_history_has_left_behind_is_not_recovered_but_replays_the_rest(
    server: Server,
) -> None:
    with server.connect(3) as connection, server.connect() as publisher:
        connection.ask("HUBSUB", "POSITIONS", "ON")
        positions = fill(publisher, "short:a", 100)
        fill(publisher, "short:a", 50)
        answer = connection.ask("HUBSUB", "SUBSCRIBE", "short:a", "FROM", positions[9])
        assert isinstance(answer, list) and answer[4] == 0
        messages = [f.plain() for f in connection.read_many(100) if f.plain()[0] == b"message"]  # type: ignore[index]
        messages += [f.plain() for f in connection.read_many(100 - len(messages))]
        assert [position(m)[1] for m in messages] == list(range(51, 151))  # type: ignore[arg-type]


def test_a_deleted_room_begins_a_new_epoch(server: Server, room: str) -> None:
    assert server.node
    with server.connect() as connection:
        old = fill(connection, room, 5)[-1]
        request = urllib.request.Request(f"{server.node.http_url}/v1/rooms/{room}", method="DELETE")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        assert connection.ask("HUBSUB", "HISTORY", room) == []
        assert connection.call("HUBSUB", "HISTORY", room, "AFTER", old).kind == "-"
        (new,) = fill(connection, room, 1)
        assert new.partition(b"-")[0] != old.partition(b"-")[0] and new.endswith(b"-1")
        answer = connection.ask("HUBSUB", "SUBSCRIBE", room, "FROM", old)
        assert answer == [b"subscribe", room.encode(), 1, new, 0]


def test_an_idle_room_is_forgotten_and_begins_a_new_epoch(start: Start) -> None:
    server = start(classes=[CHAT | {"idle_ms": 1}])
    with server.connect() as connection:
        (old,) = fill(connection, "chat:a", 1)
        until(lambda: connection.ask("HUBSUB", "HISTORY", "chat:a") == [])
        connection.ask("SUBSCRIBE", "chat:a")
        with server.connect() as publisher:
            (new,) = fill(publisher, "chat:a", 1)
        assert new.endswith(b"-1") and new != old


def test_a_room_of_the_default_class_begins_a_new_epoch_with_each_first_subscriber(server: Server) -> None:
    epochs = set()
    with server.connect() as publisher:
        for _ in range(3):
            with server.connect(3) as subscriber:
                answer = subscriber.ask("HUBSUB", "SUBSCRIBE", "plain", "LAST", 0)
                assert isinstance(answer, list) and answer[3].endswith(b"-0")
                epochs.add(answer[3])
            until(lambda: publisher.ask("PUBSUB", "NUMSUB", "plain") == [b"plain", 0])
    assert len(epochs) == 3


def test_records_older_than_their_age_are_forgotten(start: Start) -> None:
    server = start(classes=[CHAT | {"history": {"messages": 100, "age": "200ms"}}])
    with server.connect() as connection:
        fill(connection, "chat:a", 3)
        until(lambda: connection.ask("HUBSUB", "HISTORY", "chat:a") == [])
        assert server.metric("history_records") == 0


def test_a_long_history_reply_does_not_count_against_the_subscriber(start: Start) -> None:
    disconnect = {"name": "d", "match": ["d:*"], "on_slow": "disconnect"}
    # Of the 8 MB the output buffer holds only the piece being written, some 64 KiB.
    limits = {"output_bytes_max": 256 * 1024, "output_soft_bytes": 0}
    server = start(2, classes=[CHAT, disconnect], limits=limits)
    with server.connect() as publisher, server.connect(3, receive_bytes=4096) as reader:
        reader.ask("SUBSCRIBE", "d:a")
        for n in range(8000):
            publisher.command("PUBLISH", "chat:a", b"%d" % n + b"." * 1000)
        publisher.read_many(8000)
        reader.command("HUBSUB", "HISTORY", "chat:a", "COUNT", 8000)
        for n in range(20):
            assert publisher.ask("PUBLISH", "d:a", n) == 1
        rows: list[Any] = []
        live: list[bytes] = []
        while len(live) < 20 or not rows:
            item = reader.read().plain()
            assert isinstance(item, list)
            if item[0] == b"message":
                live.append(item[2])
            else:
                rows = item
        assert live == [b"%d" % n for n in range(20)]
        assert [row[4].rstrip(b".") for row in rows] == [b"%d" % n for n in range(8000)]
        assert server.metric("slow_closed_total") == 0


@pytest.mark.parametrize(
    "command",
    [
        ("HISTORY",),
        ("HISTORY", "a", "COUNT"),
        ("HISTORY", "a", "COUNT", "x"),
        ("HISTORY", "a", "COUNT", "-1"),
        ("HISTORY", "a", "AFTER", "1"),
        ("HISTORY", "a", "NOSUCH"),
        ("SUBSCRIBE", "a"),
        ("SUBSCRIBE", "a", "FROM"),
        ("SUBSCRIBE", "a", "FROM", "x-1"),
        ("SUBSCRIBE", "a", "LAST", "many"),
        ("SUBSCRIBE", "a", "SINCE", "yesterday"),
        ("SUBSCRIBE", "a", "NOSUCH", "1"),
        ("POSITIONS",),
        ("POSITIONS", "MAYBE"),
        ("LOCATE",),
        ("NOSUCH",),
    ],
    ids="-".join,
)
def test_a_wrong_form_is_an_error_and_changes_nothing(server: Server, command: tuple[str, ...]) -> None:
    with server.connect() as connection:
        reply = connection.call("HUBSUB", *command)
        assert reply.kind == "-" and reply.value.startswith(b"ERR ")  # type: ignore[union-attr]
        assert connection.ask("PUBSUB", "NUMSUB", "a") == [b"a", 0]


def test_locate_names_the_node_that_has_the_room(server: Server, room: str) -> None:
    with server.connect() as connection:
        rows = connection.ask("HUBSUB", "LOCATE", room)
        assert isinstance(rows, list) and len(rows) == 1
        name, address = rows[0]
        assert name and address == f"{server.host}:{server.port}".encode()


def test_each_kind_of_message_carries_its_position_last(server: Server, room: str) -> None:
    with server.connect(3) as connection, server.connect() as publisher:
        connection.ask("HUBSUB", "POSITIONS", "ON")
        connection.ask("SUBSCRIBE", room)
        connection.ask("PSUBSCRIBE", f"{room}*")
        connection.ask("SSUBSCRIBE", room)
        publisher.ask("PUBLISH", room, "x")
        message, pmessage = (f.plain() for f in connection.read_many(2))
        publisher.ask("SPUBLISH", room, "y")
        smessage = connection.read().plain()
        assert isinstance(message, list) and isinstance(pmessage, list) and isinstance(smessage, list)
        assert message[:3] == [b"message", room.encode(), b"x"] and len(message) == 4
        assert pmessage[:4] == [b"pmessage", f"{room}*".encode(), room.encode(), b"x"] and len(pmessage) == 5
        assert smessage[:3] == [b"smessage", room.encode(), b"y"] and len(smessage) == 4
        assert position(message) == position(pmessage) and position(message)[1] == 1
        assert connection.ask("HUBSUB", "POSITIONS", "OFF") == b"OK"
        publisher.ask("PUBLISH", room, "z")
        assert connection.read().plain() == [b"message", room.encode(), b"z"]
