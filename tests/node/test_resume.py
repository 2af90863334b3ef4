"""`hubsub sub` and the client over kill -9: they reconnect by themselves, miss nothing, and report gaps that
they cannot fill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.raw import TIMEOUT_S
from clients.servers import until
from command_line import HUBSUB, environment

from hubsub import Client
from hubsub.cli.pub import BATCH
from hubsub.client import Gap, Options, Position
from hubsub.errors import TimedOutError
from node.home import CHAT, Home, home

REPLICATED = {"name": "live", "match": ["live:*"], "durability": "replicated", "history": {"bytes": "1GiB"}}


@pytest.fixture
def one(needs: Callable[..., None], data: Path) -> Iterator[Home]:
    needs("hubsub-core")
    with home(data, classes=[CHAT, REPLICATED]) as one:
        yield one


class Sub:
    """A running `hubsub sub --json`."""

    def __init__(self, one: Home, directory: Path, *args: str) -> None:
        self.out, self.err = directory / "out", directory / "err"
        command = [*HUBSUB, "sub", "--json", "--server", one.server.url, *args]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment())

    def said(self, text: str, count: int = 1) -> str:
        """Waits for `count` stderr lines with the text; returns the last."""
        lines = until(
            lambda: (
                (found := [x for x in self.err.read_text().splitlines() if text in x])[count - 1 :] and found
            ),
            f"{text}: {self.err.read_text()}",
        )
        return lines[-1]

    def payloads(self, count: int) -> list[str]:
        """Waits for `count` records; returns all received so far."""
        until(lambda: self.out.read_bytes().count(b"\n") >= count, f"{count} records: {self.err.read_text()}")
        return [json.loads(line)["payload"] for line in self.out.read_text().splitlines()]

    def __enter__(self) -> Sub:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def publish(one: Home, room: str, numbers: range) -> None:
    """Publishes numbers and awaits each acknowledgement."""
    with one.server.connect() as connection:
        for n in numbers:
            connection.command("PUBLISH", room, n)
        assert all(frame.kind == ":" for frame in connection.read_many(len(numbers)))


def test_sub_prints_every_record_once_in_order_over_kills_and_says_how_to_go_on(
    one: Home, tmp_path: Path
) -> None:
    publish(one, "chat:1", range(1, 101))
    with Sub(one, tmp_path, "chat:1", "--rewind", "100") as sub:
        sub.said("subscribed to chat:1")
        for kills, first in enumerate(range(101, 301, 100), 1):
            publish(one, "chat:1", range(first, first + 50))
            one.kill()
            sub.said("connection lost (", kills)
            one.start()
            publish(one, "chat:1", range(first + 50, first + 100))
            sub.said("connected again after", kills)
        assert sub.payloads(300) == [str(n) for n in range(1, 301)]
        sub.process.send_signal(signal.SIGINT)
        assert sub.process.wait(TIMEOUT_S) == 130
        assert "gap" not in sub.err.read_text()
        hint = sub.said("go on from here: ").partition(": ")[2]
    publish(one, "chat:1", range(301, 351))
    one.restart(kills=True)
    publish(one, "chat:1", range(351, 401))
    words = shlex.split(hint)
    assert words[:2] == ["hubsub", "sub"]
    with Sub(one, tmp_path, *words[2:], "--count", "100") as sub:
        assert sub.process.wait(TIMEOUT_S) == 0
        assert sub.payloads(100) == [str(n) for n in range(301, 401)]


def test_sub_resumes_each_of_several_rooms_from_its_own_position(one: Home, tmp_path: Path) -> None:
    for room in ("chat:a", "chat:b"):
        publish(one, room, range(1, 11))
    with one.server.connect() as connection:
        rows = [connection.ask("HUBSUB", "HISTORY", room) for room in ("chat:a", "chat:b")]
        a, b = rows[0][3][0].decode(), rows[1][6][0].decode()  # type: ignore[index]
    one.restart(kills=True)
    args = ("chat:a", "chat:b", "--resume", a, "--resume", b, "--count", "9")
    with Sub(one, tmp_path, *args) as sub:
        assert sub.process.wait(TIMEOUT_S) == 0
        records = [json.loads(line) for line in sub.out.read_text().splitlines()]
        of = {room: [r["payload"] for r in records if r["topic"] == room] for room in ("chat:a", "chat:b")}
        assert of == {"chat:a": [str(n) for n in range(5, 11)], "chat:b": [str(n) for n in range(8, 11)]}
        assert "gap" not in sub.err.read_text()


def test_sub_says_that_a_position_of_another_life_is_not_recovered(one: Home, tmp_path: Path) -> None:
    publish(one, "chat:1", range(1, 4))
    with Sub(one, tmp_path, "chat:1", "--resume", "12345-2", "--count", "1") as sub:
        sub.said("gap in chat:1: the room began anew, or keeps no history")
        sub.said("subscribed")
        publish(one, "chat:1", range(4, 5))
        assert sub.process.wait(TIMEOUT_S) == 0
        assert sub.payloads(1) == ["4"]


@pytest.mark.parametrize("pattern", [False, True])
def test_sub_says_after_the_return_of_its_connection_what_it_could_not_go_on_with(
    one: Home, tmp_path: Path, pattern: bool
) -> None:
    name, why = ("live:*", "patterns do not resume") if pattern else ("live:a", "the room began anew")
    publish(one, "live:a", range(1, 4))
    with Sub(one, tmp_path, name, *(["--pattern"] if pattern else [])) as sub:
        sub.said("subscribed")
        publish(one, "live:a", range(4, 6))
        sub.payloads(2)
        one.kill()
        sub.said("connection lost")
        one.start()
        publish(one, "live:a", range(6, 7))
        sub.said("gap in ")
        lost, back, gap = sub.err.read_text().splitlines()[1:4]
    assert lost.startswith("connection lost (") and gap.startswith(f"gap in {name}: {why}")
    assert re.fullmatch(r"connected again after [0-9.]+ s", back), back


def test_pub_that_a_kill_breaks_off_goes_on_behind_what_was_acknowledged(one: Home, tmp_path: Path) -> None:
    lines = [json.dumps({"topic": "chat:1", "payload": str(n)}) + "\n" for n in range(2 * BATCH)]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(lines))
    pub = [*HUBSUB, "pub", "--server", one.server.url, "--from"]
    with subprocess.Popen([*pub, "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stderr
        run.stdin.write("".join(lines[:BATCH]))
        run.stdin.flush()

        def is_there() -> bool:
            with one.server.connect() as connection:
                rows = connection.ask("HUBSUB", "HISTORY", "chat:1", "COUNT", 1)
            return bool(rows) and rows[0][4] == b"%d" % (BATCH - 1)  # type: ignore[index]

        until(is_there)
        one.kill()
        run.stdin.write("".join(lines[BATCH:]))
        run.stdin.close()
        said, error, *_ = run.stderr.read().splitlines()
        assert run.wait(TIMEOUT_S) == 1
    told = re.fullmatch(
        r"the first (\d+) records are acknowledged, the next (\d+) may be there or not; "
        r"--skip \1 goes on behind them",
        said,
    )
    # It may not have read all replies when the node was killed.
    assert told and int(told[1]) <= BATCH <= int(told[1]) + int(told[2])
    assert error.startswith("error: ")
    one.start()
    subprocess.run([*pub, str(file), "--skip", str(BATCH)], check=True, timeout=TIMEOUT_S)
    with one.server.connect() as connection:
        rows = connection.ask("HUBSUB", "HISTORY", "chat:1", "COUNT", 10_000)
    assert isinstance(rows, list)
    assert [row[4] for row in rows] == [b"%d" % n for n in range(2 * BATCH)]


def bounded(work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await work

    asyncio.run(run())


class Reader:
    """A client subscription that stores its records by topic, and the notifications that it received."""

    def __init__(self, client: Client, *topics: str) -> None:
        self.seen: dict[str, list[tuple[Position | None, bytes]]] = {topic: [] for topic in topics}
        self.gaps: list[Gap] = []
        self.came = asyncio.Condition()
        self.records = client.subscribe(*topics, last=0, on_gap=self.gaps.append)

    async def read(self) -> None:
        async for record in self.records:
            self.seen[record.topic.decode()].append((record.position, record.payload))
            async with self.came:
                self.came.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.came:
            await self.came.wait_for(condition)


@contextlib.asynccontextmanager
async def reading(client: Client, *topics: str) -> AsyncIterator[Reader]:
    reader = Reader(client, *topics)
    async with reader.records:
        task = asyncio.create_task(reader.read())
        yield reader
    await task


QUICK = Options(backoff_s=0.01, backoff_s_max=0.1)


def test_a_client_misses_nothing_of_durable_rooms_that_are_published_to_through_kills(one: Home) -> None:
    """After each kill the publisher reads from the history how far it got and continues from there."""
    rooms = [f"chat:{n}" for n in range(5)]

    async def play() -> None:
        async with Client(one.server.url, options=QUICK) as client:
            # A room without a record has nothing that preserves its epoch.
            await client.publish_many([(room, "1") for room in rooms])
            async with reading(client, *rooms) as reader:
                for _ in range(2):
                    sent = {room: (await client.history(room, count=1)).records[0].position for room in rooms}
                    batch = [(r, str(sent[r].seq + n)) for n in range(1, 4_001) for r in rooms]  # type: ignore[union-attr]
                    publishing = asyncio.ensure_future(client.publish_many(batch))
                    due = len(reader.seen["chat:0"]) + 100
                    await reader.until(lambda due=due: len(reader.seen["chat:0"]) >= due)  # type: ignore[misc]
                    one.kill()
                    with pytest.raises(TimedOutError):
                        await publishing
                    one.start()
                ends = {room: (await client.history(room, count=1)).records[0].position for room in rooms}
                for room, end in ends.items():
                    assert end is not None
                    await reader.until(
                        lambda r=room, e=end: bool(reader.seen[r]) and reader.seen[r][-1][0] == e
                    )  # type: ignore[misc]
                    expected = [(end._replace(seq=seq), b"%d" % seq) for seq in range(2, end.seq + 1)]
                    assert reader.seen[room] == expected
                assert not reader.gaps and reader.records.reconnects == 2

    bounded(play())


def test_a_client_is_told_when_a_replicated_room_began_anew_and_gets_all_of_its_new_life(one: Home) -> None:
    async def play() -> None:
        async with Client(one.server.url, options=QUICK) as client, reading(client, "live:a") as reader:
            await client.publish_many([("live:a", str(n)) for n in range(10)])
            await reader.until(lambda: len(reader.seen["live:a"]) == 10)
            one.restart(kills=True)
            publish(one, "live:a", range(10, 20))
            await reader.until(lambda: len(reader.seen["live:a"]) == 20)
            assert [payload for _, payload in reader.seen["live:a"]] == [b"%d" % n for n in range(20)]
            old, new = (reader.seen["live:a"][i][0] for i in (0, 10))
            assert old and new and new.seq == 1 and old.epoch != new.epoch
            assert reader.gaps == [Gap(b"live:a", None, None)]
            one.restart()
            publish(one, "live:a", range(20, 25))
            await reader.until(lambda: len(reader.seen["live:a"]) == 25)
            assert [position for position, _ in reader.seen["live:a"][20:]] == [
                (new.epoch, seq) for seq in range(11, 16)
            ]
            assert len(reader.gaps) == 1, "a clean stop keeps the epoch"

    bounded(play())
