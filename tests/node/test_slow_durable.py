"""A slow subscriber of a durable class reads on from the disk and is notified of records that retention
removed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.servers import Server, until

from node.home import home
from node.logged import QUIET
from node.test_slow_subscribers import LIMITS, Publisher, number, read_until, seqs, subscribe

SMALL_FILES = {
    **QUIET,
    **LIMITS,
    "log_tail_bytes_max": "64KiB",
    "log_segment_bytes": "256KiB",
    "log_journal_bytes": "1MiB",
    "log_checkpoint_bytes": "512KiB",
}
"""Memory holds about 60 of these tests' records, a segment about 250."""

BEYOND = 5_000
"""Minimum lag of a subscriber, in records: 5 MB, far more than memory and the kernel's buffers hold."""


@pytest.fixture
def start(needs: Callable[..., None], data: Path) -> Iterator[Callable[..., Server]]:
    """A node whose rooms `r*` are durable; their subscribers catch up from the log."""
    needs("hubsub-core")
    with contextlib.ExitStack() as stack:

        def one(shards: int = 2, history: str = "1GiB", **more: Any) -> Server:
            row = {"name": "slow", "match": ["r*"], "durability": "durable", "on_slow": "catch-up"}
            classes = [{**row, "history": {"bytes": history}, **more}]
            return stack.enter_context(home(data, shards, limits=SMALL_FILES, classes=classes)).server

        yield one


def history_starts_behind(server: Server, seq: int) -> bool:
    """Whether retention has removed all records up to a seq."""
    with server.connect() as connection:
        rows = connection.ask("HUBSUB", "HISTORY", "room", "COUNT", 1)
        epoch = rows[0][0].decode().partition("-")[0]  # type: ignore[index]
        reply = connection.call("HUBSUB", "HISTORY", "room", "COUNT", 1, "AFTER", f"{epoch}-{seq}")
        return reply.kind == "-"


def test_it_reads_on_from_the_disk_without_gap_or_double_and_becomes_live_again(
    start: Callable[..., Server],
) -> None:
    server = start(3)
    stalled, pattern = subscribe(server, "room", positions=True), server.connect(3, 4096)
    pattern.ask("PSUBSCRIBE", "r*")
    publisher = Publisher(server)
    publisher.until("catch_ups_total", 2)
    publisher.publish(BEYOND)
    assert server.metric("history_bytes") <= 64 << 10, "memory keeps the tail only"
    received = list(read_until(stalled, publisher.sent - 1))
    assert [number(message) for message in received] == list(range(publisher.sent))
    assert [seqs(message)[0] for message in received] == list(range(1, publisher.sent + 1))
    for n in range(publisher.sent):
        item = pattern.read().plain()
        assert isinstance(item, list) and item[0] == b"pmessage" and number(item[1:]) == n
    until(lambda: server.metric("cursors") == 0, "both are live")
    publisher.publish(1)
    assert number(stalled.read().plain()) == publisher.sent - 1  # type: ignore[arg-type]
    assert server.metric("slow_closed_total") == server.metric("gap_records_total") == 0


def test_it_catches_up_while_others_go_on_publishing(start: Callable[..., Server]) -> None:
    server = start()
    stalled = subscribe(server, "room")
    publisher = Publisher(server)
    publisher.until("catch_ups_total")
    publisher.publish(BEYOND)
    got = 0
    while got < publisher.sent:
        if got % 2_000 == 0 and publisher.sent < 2 * BEYOND:
            publisher.publish(500)
        item = stalled.read().plain()
        assert isinstance(item, list) and number(item) == got
        got += 1


def test_a_gap_push_tells_what_retention_has_removed_and_nothing_else_is_missing(
    start: Callable[..., Server],
) -> None:
    server = start(history="1MiB")
    told = subscribe(server, "room", positions=True)
    publisher = Publisher(server)
    publisher.until("catch_ups_total")
    behind = publisher.sent
    publisher.publish(BEYOND)
    until(lambda: history_starts_behind(server, behind), "retention")
    items = list(read_until(told, publisher.sent - 1))
    covered = list(itertools.chain.from_iterable(map(seqs, items)))
    assert covered == list(range(1, publisher.sent + 1)), "each record is there or in a gap that is told"
    gaps = [item for item in items if item[0] == b"gap"]
    assert gaps and server.metric("gap_records_total") == sum(len(seqs(item)) for item in gaps)
    publisher.publish(1)
    assert number(told.read().plain()) == publisher.sent - 1  # type: ignore[arg-type]


def test_who_cannot_be_told_is_closed_at_the_gap(start: Callable[..., Server]) -> None:
    """`on_gap` of a class with history defaults to `disconnect`; plain Redis has no gap message."""
    server = start(history="1MiB")
    plain = subscribe(server, "room")
    publisher = Publisher(server)
    publisher.until("catch_ups_total")
    behind = publisher.sent
    publisher.publish(BEYOND)
    until(lambda: history_starts_behind(server, behind), "retention")
    received = [number(frame.plain()) for frame in plain.read_to_end()]  # type: ignore[arg-type]
    assert received == list(range(len(received))) and len(received) < publisher.sent
    server.log_line("slow subscriber closed", "would miss records")


def test_on_gap_continue_goes_on_behind_the_gap(start: Callable[..., Server]) -> None:
    server = start(history="1MiB", on_gap="continue")
    plain = subscribe(server, "room")
    publisher = Publisher(server)
    publisher.until("catch_ups_total")
    behind = publisher.sent
    publisher.publish(BEYOND)
    until(lambda: history_starts_behind(server, behind), "retention")
    numbers = [number(item) for item in read_until(plain, publisher.sent - 1)]
    assert numbers == sorted(set(numbers)) and len(numbers) < publisher.sent
    assert server.metric("gap_records_total") == publisher.sent - len(numbers)
