"""Floods from one MQTT client: a named limit stops each, its client is notified as its version allows, and no
other client suffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from clients.mqtt import CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBLISH, SUBACK, V5, V311, Packet, Wire, text
from clients.servers import Server, hubsub_node, until

from node.conftest import Start
from node.test_mqtt import client, wire

MANY = 40


def subscribe(name: str) -> Callable[[Wire], None]:
    """Sends SUBSCRIBE for many filters, one by one."""

    def flood(one: Wire) -> None:
        own = b"\x00" if one.version == V5 else b""
        for number in range(1, MANY + 1):
            wanted = text(name.format(number)) + b"\x00"
            one.send(b"\x82", bytes([2 + len(own) + len(wanted), 0, number]), own, wanted)

    return flood


def publish(topic: str, payload: bytes = b"x", alias: bool = False) -> Callable[[Wire], None]:
    """Publishes many messages of QoS 1, optionally each with its own topic alias."""

    def flood(one: Wire) -> None:
        for number in range(1, MANY + 1):
            properties = b"\x23\x00" + bytes([number]) if alias and one.version == V5 else b""
            one.publish(topic.format(number), payload, 1, number, properties=properties)

    return flood


class Flood(NamedTuple):
    """A client's flood and the server's expected reaction."""

    limits: dict[str, int]
    """Limits of a node for this flood, which leaves state there; empty: the shared node."""
    flood: Callable[[Wire], None]
    taken: int
    """Number of accepted requests."""
    refused: int
    """Reason code for each further request in 5.0, in its reply or in DISCONNECT."""
    ends: bool
    """Whether the server disconnects a client of 5.0."""
    older: int | None
    """Reason code for each further request before 5.0; None: the server closes the connection."""


KEPT = {"name": "kept", "match": ["kept/#"], "history": {"messages": 10}, "payload_bytes_max": 100}

LIMITS = {
    "subscriptions_per_client_max": 5,
    "pattern_bytes_max": 12,
    "topic_bytes_max": 20,
    "mqtt_packet_bytes_max": 1024,
    "mqtt_topic_aliases_max": 3,
}

FLOODS = {
    "subscriptions": Flood({}, subscribe("t/{}"), 5, 0x97, False, 0x80),
    "wildcards": Flood({}, subscribe("t/{}/#"), 5, 0x97, False, 0x80),
    "long wildcards": Flood({}, subscribe("t/long/name/{}/#"), 0, 0x97, False, 0x80),
    "rooms to read": Flood({"rooms_max": 6}, subscribe("kept/{}"), 5, 0x97, False, 0x80),
    "rooms to write": Flood({"rooms_max": 6}, publish("kept/{}"), 5, 0x97, False, None),
    "messages": Flood({"publishes_per_minute_max": 7}, publish("t"), 7, 0x97, False, None),
    "long messages": Flood({}, publish("kept/1", b"x" * 101), 0, 0x83, False, None),
    "long packets": Flood({}, publish("t", b"x" * 1100), 0, 0x95, True, None),
    "long topics": Flood({}, publish("t" * 20 + "{}"), 0, 0x90, False, None),
}


@pytest.fixture(scope="module")
def narrow(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with low limits."""
    needs("hubsub-core")
    with hubsub_node(1, {"mqtt": "127.0.0.1:0"}, limits=LIMITS, classes=[KEPT]) as server:
        yield server


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_is_refused_and_harms_nobody_else(
    narrow: Server, start: Start, what: str, version: int
) -> None:
    limits, flood, taken, refused, ends, older = FLOODS[what]
    server = start(1, {"mqtt": "127.0.0.1:0"}, limits=limits, classes=[KEPT]) if limits else narrow
    with client(server, "good", V5) as good, client(server, "flood", version) as one:
        assert good.subscribe(("good", 1)) == [1]
        # The server may close a connection before 5.0 before the client has sent everything.
        with contextlib.suppress(ConnectionError):
            flood(one)
        told = answers(one)
        if version == V5 and not ends:
            assert told == [0] * taken + [refused] * (MANY - taken)
        elif version == V5:
            assert told == [0] * taken + [("end", refused)]
        elif older is not None:
            assert told == [0] * taken + [older] * (MANY - taken)
        else:
            assert told == [0] * taken + [("end", None)]
        works(good)


def answers(one: Wire) -> list[Any]:
    """The result of each request of a flood: 0 if accepted, else its reason code; and how the connection
    ended."""
    told: list[Any] = []
    while len(told) < MANY:
        got = next_packet(one)
        if got is None:
            return [*told, ("end", None)]
        if got.kind == DISCONNECT:
            return [*told, ("end", got.body[0])]
        assert got.kind in (PUBACK, SUBACK), got
        assert got.id == len(told) + 1
        # A refusal may have a reason string after the reason code of PUBACK, and before those of SUBACK.
        reason = got.rest[:1] if got.kind == PUBACK else got.rest[-1:]
        # 0x10: no matching subscribers.
        told.append(0 if reason in (b"", b"\x10") else reason[0])
    return told


def next_packet(one: Wire) -> Packet | None:
    """The next packet; None at the end."""
    try:
        return one.read()
    except (AssertionError, ConnectionError):
        return None


def works(good: Wire) -> None:
    """The server still serves another client."""
    good.publish("good", b"x", 1, 9)
    kinds = {good.read().kind for _ in "12"}
    assert kinds == {PUBLISH, PUBACK}


def test_aliases_above_the_maximum_end_their_client(narrow: Server) -> None:
    with client(narrow, "good", V5) as good, client(narrow, "flood", V5) as one:
        assert good.subscribe(("good", 1)) == [1]
        publish("t/{}", alias=True)(one)
        assert answers(one)[-1] == ("end", 0x94)
        works(good)


@pytest.mark.parametrize("version", [V311, V5])
def test_connections_above_the_maximum_are_refused(start: Start, version: int) -> None:
    server = start(1, {"mqtt": "127.0.0.1:0"}, limits={"connections_max": 3})
    with client(server, "good", V5) as good, client(server, "two", V5):
        assert good.subscribe(("good", 1)) == [1]
        kept: list[Wire] = []
        for number in range(MANY):
            one = wire(server)
            kept.append(one)
            try:
                came = one.connect(f"flood-{number}", version)
            except (AssertionError, ConnectionError):
                continue
            assert (came.kind, came.body[1]) == (CONNACK, 0)
        works(good)
        until(lambda: server.metric("mqtt_connections") == 3, "one of them was taken in")
        for one in kept:
            one.close()
        until(lambda: server.metric("mqtt_connections") == 2, "the others are gone")


def test_one_client_id_again_and_again_costs_one_connection(start: Start) -> None:
    server = start(2, {"mqtt": "127.0.0.1:0"})
    with client(server, "good", V5) as good:
        assert good.subscribe(("good", 1)) == [1]
        last: list[Wire] = []
        for _ in range(MANY):
            last.append(client(server, "same", V5))
        assert [one.read_all()[-1].body[0] for one in last[:-1]] == [0x8E] * (MANY - 1)
        last[-1].ping()
        last[-1].read(PINGRESP)
        until(lambda: server.metric("mqtt_connections") == 2, "two are left")
        works(good)
        for one in last:
            one.close()
