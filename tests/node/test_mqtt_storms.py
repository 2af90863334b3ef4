"""Many clients take over one client id at once: each gets connected, and the last one stays."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from clients.mqtt import CONNACK, DISCONNECT, PINGRESP, PUBLISH, V5, V311, Packet, Wire, packet, text, varying
from clients.mqtt_sessions import expiry
from clients.servers import Server, until

from node.conftest import Start
from node.test_mqtt import begin, client
from node.test_mqtt import wire as wire_of

MANY = 300
TAKEN_OVER = 0x8E


def connect(version: int, flags: int, session: bool) -> bytes:
    """A CONNECT packet with a will."""
    own = expiry(3600) if session else b""
    properties = varying(len(own)) + own if version == V5 else b""
    will = (b"\x00" if version == V5 else b"") + text("gone") + text("x")
    head = text("MQTT") + bytes([version, flags | 4, 0, 0])
    return packet(0x10, head + properties + text("rush") + will)


def until_pong(wire: Wire) -> list[Packet]:
    """The packets until a ping reply, or until the server has closed."""
    told: list[Packet] = []
    try:
        wire.ping()
        while not told or told[-1].kind != PINGRESP:
            told.append(wire.read())
    except (AssertionError, OSError):
        told += wire.read_all()
    return told


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("version", "session"), [(V5, False), (V5, True), (V311, False), (V311, True)])
def test_of_many_that_take_over_one_id_at_once_none_is_refused(
    start: Start, shards: int, version: int, session: bool
) -> None:
    server: Server = begin(start, shards, limits={"mqtt_lingering_max": MANY})
    hello = connect(version, 0 if session else 2, session)
    with client(server, "watch") as watch, ExitStack() as stack:
        watch.subscribe(("gone", 0))
        wires = [stack.enter_context(wire_of(server)) for _ in range(MANY)]
        for wire in wires:
            wire.version = version
            wire.send(hello)
        # The server accepts each client, even while others connect.
        for wire in wires:
            answer = wire.read(CONNACK)
            assert answer.body[1] == 0, answer
        until(lambda: server.metric("mqtt_taken_over_total") == MANY - 1)
        stays = []
        for wire in wires:
            told = until_pong(wire)
            if told and told[-1].kind == PINGRESP:
                stays.append(wire)
            else:
                ends = [(DISCONNECT, bytes([TAKEN_OVER]))] if version == V5 else []
                assert [(one.kind, one.body[:1]) for one in told] == ends
        assert len(stays) == 1
        assert server.metric("mqtt_refused_total") == 0
        if not session:
            # Each client that loses its session to another leaves its will.
            assert [watch.read(PUBLISH).topic for _ in range(MANY - 1)] == ["gone"] * (MANY - 1)
        # The next client is the last; it gets the session if there is one.
        with wire_of(server) as last:
            last.version = version
            last.send(hello)
            assert list(last.read(CONNACK).body[:2]) == [session, 0]
            last.ping()
            last.read(PINGRESP)
            stays[0].read_all()
