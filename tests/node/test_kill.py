"""kill -9 in a loop, under load: each acknowledged record is there, once, in order, and nothing else is.

Publishers pipeline numbered payloads into rooms of all shards; subscribers read them with positions. The node
is killed after a random number of acknowledgements, or while it recovers, and is restarted on its directory;
subscribers resume. The oracle knows what each connection sent, in order, and how much of it was acknowledged.
It knows nothing of how the node stores records.

`make test` runs a fixed sample. `make soak` (HYPOTHESIS_PROFILE=soak) runs a long series with new seeds;
HUBSUB_KILL_SEED repeats one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S, encode
from clients.servers import Server

from node.crowd import Member
from node.home import CHAT, Home, home

ROOMS = [b"chat:%d" % n for n in range(12)]
PUBLISHERS = 6
SUBSCRIBERS = 4
BATCH = 64
IN_FLIGHT_MAX = 1_024
ACKNOWLEDGED_MAX = 12_000
"""Maximum acknowledgements that a round waits for: some MB, many of the small files below."""

LIMITS = {
    "log_journal_bytes": "256KiB",
    "log_segment_bytes": "128KiB",
    "log_checkpoint_bytes": "200KiB",
    "log_tail_bytes_max": "64KiB",
}
"""Small limits, so that a round reaches file ends, checkpoints and disk reads."""

IS_SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"

Entry = tuple[bytes, bytes]
"""Position and payload of a record."""


def seed_and_rounds() -> list[tuple[int, int]]:
    """(seed, number of kills) of each run."""
    if given := os.environ.get("HUBSUB_KILL_SEED"):
        return [(int(given), 40)]
    return [(random.SystemRandom().randrange(1 << 32), 60) for _ in range(2)] if IS_SOAK else [(1, 3)]


class Publisher(Member):
    """Keeps its window full. The n-th reply belongs to the n-th command of `sent`."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, bytes]] = []
        """(room, payload) in order of sending."""
        self.enough: tuple[int, asyncio.Event] = (0, asyncio.Event())
        """A number of acknowledgements, and the event to set once it is reached."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self.replies) >= self.enough[0]:
            self.enough[1].set()

    async def publish(self, name: bytes, dice: random.Random) -> None:
        """Publishes until the node is gone."""
        while not self.transport.is_closing():
            data = bytearray()
            for _ in range(dice.randint(1, BATCH)):
                payload = b"%b-%d " % (name, len(self.sent)) + b"." * int(dice.expovariate(1 / 150))
                self.sent.append((dice.choice(ROOMS), payload))
                data += encode("PUBLISH", *self.sent[-1])
            self.transport.write(bytes(data))
            try:
                await self.until(lambda: len(self.sent) - len(self.replies) < IN_FLIGHT_MAX)
            except EOFError:
                return


class Subscriber(Member):
    """Reads rooms from a position."""

    seen: dict[bytes, list[Entry]]
    unconfirmed: set[bytes]
    unrecovered: list[bytes]

    async def subscribe(self, behind: dict[bytes, bytes]) -> None:
        """Resumes all rooms; `pushes` receives records and confirmations."""
        assert await self.call("HUBSUB", "POSITIONS", "ON") == b"OK"
        for room, position in behind.items():
            self.transport.write(encode("HUBSUB", "SUBSCRIBE", room, "FROM", position))

    def take(self) -> dict[bytes, list[Entry]]:
        """The records received per room; asserts that all recovered and no gap was reported."""
        seen: dict[bytes, list[Entry]] = defaultdict(list)
        for push in self.pushes:
            if push[0] == b"subscribe":
                assert push[4] == 1, f"not recovered: {push}"
            else:
                assert push[0] == b"message", push
                seen[push[1]].append((push[3], push[2]))
        self.pushes.clear()
        return seen


class Oracle:
    """The expected contents of the log."""

    def __init__(self) -> None:
        self.log: dict[bytes, list[Entry]] = {room: [] for room in ROOMS}
        """The log as read after the last start."""
        self.lives: list[Publisher] = []
        """Publishers of the run that has ended."""
        self.read: dict[int, dict[bytes, int]] = {n: dict.fromkeys(ROOMS, 1) for n in range(SUBSCRIBERS)}
        """Per subscriber and room: how many entries of `log` it has received. It never receives the first."""
        self.acknowledged = self.survived = 0

    def check(self, found: dict[bytes, list[Entry]]) -> None:
        """Checks the current log against what was sent; the oracle then uses it as its log."""
        for room, entries in found.items():
            epoch = (self.log[room] or entries)[0][0].partition(b"-")[0]
            seqs = [b"%b-%d" % (epoch, seq) for seq in range(1, len(entries) + 1)]
            assert [position for position, _ in entries] == seqs, (
                f"{room!r} has one epoch and seqs without gap"
            )
            known = self.log[room]
            assert entries[: len(known)] == known, f"what {room!r} had is there, unchanged"
        grown = {room: [payload for _, payload in found[room][len(self.log[room]) :]] for room in found}
        for publisher in self.lives:
            acknowledged = publisher.sent[: len(publisher.replies)]
            assert all(type(reply) is int for reply in publisher.replies), "no publish was refused"
            self.acknowledged += len(acknowledged)
            name = publisher.sent[0][1].split(b"-")[0] + b"-"
            for room, payloads in grown.items():
                mine = [payload for payload in payloads if payload.startswith(name)]
                sent = [payload for where, payload in publisher.sent if where == room]
                least = sum(where == room for where, _ in acknowledged)
                assert mine == sent[: len(mine)], f"{room!r} has what was sent, in order, once"
                assert len(mine) >= least, f"{room!r} lost {least - len(mine)} acknowledged records"
                self.survived += len(mine)
                grown[room] = [payload for payload in payloads if not payload.startswith(name)]
        assert not any(grown.values()), f"nobody sent these: {grown}"
        self.log, self.lives = found, []

    def check_seen(self, subscribers: Iterable[Subscriber]) -> None:
        """Subscribers saw what the log contains, in order, once; call it after `check`."""
        for n, subscriber in enumerate(subscribers):
            for room, entries in subscriber.take().items():
                at = self.read[n][room]
                assert entries == self.log[room][at : at + len(entries)], "nobody heard of what is not there"
                self.read[n][room] = at + len(entries)

    def behind(self, n: int) -> dict[bytes, bytes]:
        """The positions from which a subscriber resumes."""
        return {room: self.log[room][count - 1][0] for room, count in self.read[n].items()}


async def whole_log(server: Server) -> dict[bytes, list[Entry]]:
    """All rooms, read in pieces."""
    reader = await Member.join(server.host, server.port)
    log: dict[bytes, list[Entry]] = {}
    for room in ROOMS:
        entries: list[Entry] = []
        rows = await reader.call("HUBSUB", "HISTORY", room, "COUNT", 1)
        after = rows[0][0].partition(b"-")[0] + b"-0" if rows else b""
        while rows:
            rows = await reader.call("HUBSUB", "HISTORY", room, "COUNT", 2_000, "AFTER", after)
            assert isinstance(rows, list), rows
            entries += [(row[0], row[4]) for row in rows]
            after = entries[-1][0]
        log[room] = entries
    reader.leave()
    return log


async def life(one: Home, oracle: Oracle, number: int, dice: random.Random) -> None:
    """Runs one node from its start to its kill."""
    address = (one.server.host, one.server.port)
    subscribers = [await Subscriber.join(*address) for _ in range(SUBSCRIBERS)]
    for n, subscriber in enumerate(subscribers):
        await subscriber.subscribe(oracle.behind(n))
    publishers = [await Publisher.join(*address) for _ in range(PUBLISHERS)]
    # The count of one connection decides, so the kill hits the others at any point of their work.
    enough = asyncio.Event()
    publishers[0].enough = (dice.randint(0, ACKNOWLEDGED_MAX // PUBLISHERS), enough)
    publishing = [
        asyncio.create_task(publisher.publish(b"%d.%d" % (number, n), random.Random(dice.random())))
        for n, publisher in enumerate(publishers)
    ]
    async with asyncio.timeout(TIMEOUT_S):
        await enough.wait()
    one.kill()
    await asyncio.gather(*publishing)
    for subscriber in subscribers:
        await subscriber.until_closed()
    oracle.lives = publishers
    one.start()
    oracle.check(await whole_log(one.server))
    oracle.check_seen(subscribers)


async def series(one: Home, seed: int, rounds: int) -> None:
    dice, oracle = random.Random(seed), Oracle()
    first = await Member.join(one.server.host, one.server.port)
    await first.pipeline(("PUBLISH", room, "0-0 ") for room in ROOMS)
    oracle.log = await whole_log(one.server)
    for number in range(1, rounds + 1):
        await life(one, oracle, number, dice)
        if dice.random() < 0.3:
            one.kill()
            one.start_and_kill(dice.uniform(0.1, 1.0))
            one.start()
            oracle.check(await whole_log(one.server))
    # At the end every subscriber receives everything.
    subscribers = [await Subscriber.join(one.server.host, one.server.port) for _ in range(SUBSCRIBERS)]
    for n, subscriber in enumerate(subscribers):
        await subscriber.subscribe(oracle.behind(n))
        due = sum(len(entries) - oracle.read[n][room] for room, entries in oracle.log.items())
        await subscriber.until(lambda s=subscriber, due=due: len(s.pushes) >= due + len(ROOMS))  # type: ignore[misc]
    oracle.check_seen(subscribers)
    assert all(oracle.read[n][room] == len(oracle.log[room]) for n in oracle.read for room in ROOMS)
    assert oracle.acknowledged > 0
    print(f"{rounds} kills: {oracle.acknowledged} acknowledged, {oracle.survived} there")


@pytest.mark.parametrize(("seed", "rounds"), seed_and_rounds())
def test_what_was_acknowledged_survives_kill_9_and_nobody_hears_of_what_does_not(
    needs: Callable[..., None], data: Path, seed: int, rounds: int
) -> None:
    needs("hubsub-core")

    async def bounded() -> None:
        async with asyncio.timeout((rounds + 4) * TIMEOUT_S):
            await series(one, seed, rounds)

    with home(data, shards=3, limits=LIMITS, classes=[CHAT]) as one:
        asyncio.run(bounded())
