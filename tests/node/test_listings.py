"""Listings examine a bounded number of rooms and topics per turn, from their start point, and in the end all
of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from clients.servers import Server

TURN = 8
ROOMS = 200

Start = Callable[..., Server]


def page(server: Server, **query: Any) -> tuple[list[str], int, int]:
    """Names, the number of rooms that the shards examined, and the number of turns."""
    before = [server.metric(f"listing_{name}_total") for name in ("names", "turns")]
    rooms = json.loads(server.get(f"/v1/rooms?{urlencode(query)}"))["rooms"]
    after = [server.metric(f"listing_{name}_total") for name in ("names", "turns")]
    names, turns = (now - then for now, then in zip(after, before, strict=True))
    return [room["name"] for room in rooms], names, turns


@pytest.mark.parametrize("shards", [1, 2])
def test_a_page_passes_what_it_holds_and_a_pattern_that_matches_nothing_goes_on_turn_by_turn(
    start: Start, shards: int
) -> None:
    server = start(shards, limits={"listing_turn_names_max": TURN})
    rooms = [f"room:{number:03}" for number in range(ROOMS)]
    with server.connect() as client:
        for room in rooms:
            client.ask("SUBSCRIBE", room)
        first, passed, _ = page(server, limit=1)
        assert first == rooms[:1] and passed <= shards
        last, passed, _ = page(server, limit=10, after=rooms[-3])
        assert last == rooms[-2:] and passed <= 2
        some, passed, _ = page(server, limit=100, match="room:15*")
        assert some == rooms[150:160] and passed == 10
        none, passed, turns = page(server, limit=1, match="*:nobody")
        assert none == [] and passed == ROOMS and turns >= ROOMS / TURN
        whole, passed, turns = page(server, limit=1_000)
        assert whole == rooms and passed == ROOMS and turns >= ROOMS / TURN


def test_channels_are_listed_turn_by_turn_each_once_in_the_order_of_names(start: Start) -> None:
    server = start(2, limits={"listing_turn_names_max": TURN})
    topics = [f"topic:{number:03}" for number in range(ROOMS)]
    with server.connect(3) as one, server.connect(3) as other, server.connect() as asker:
        for client in (one, other):
            client.command("SUBSCRIBE", *topics)
            client.read_many(ROOMS)
        before = server.metric("listing_turns_total")
        # Commands sent after the list are answered after it.
        asker.command("PUBSUB", "CHANNELS", "topic:*")
        asker.command("PING")
        assert asker.read().plain() == [topic.encode() for topic in topics]
        assert asker.read().plain() == b"PONG"
        assert server.metric("listing_turns_total") - before >= ROOMS / TURN
        assert asker.ask("PUBSUB", "CHANNELS", "topic:?5[0-9]*x") == []
        assert asker.ask("PUBSUB", "SHARDCHANNELS") == []
