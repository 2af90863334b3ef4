"""Named consumers: groups keep their position in a log while members join and leave and nodes are killed."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clients.mqtt import PINGRESP, PUBACK, PUBLISH, V5, Wire
from clients.raw import Connection
from clients.servers import Server, until
from command_line import hubsub

from hubsub.client import BlockingClient, Client
from hubsub.errors import ClientError, NotConnectedError, ReplyError
from node.conftest import Start
from node.home import Home, home

KEPT = {"name": "kept", "match": ["kept:*"], "durability": "durable", "history": {"bytes": "64MiB"}}


@pytest.fixture
def serve(start: Start, tmp_path: Path) -> Callable[..., Server]:
    """Starts a node with a log, repeatedly on the same directory."""

    def begin(**more: Any) -> Server:
        config = {"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0", "http": "127.0.0.1:0"}
        return start(more.pop("shards", 2), config, classes=[KEPT], **more)

    return begin


def consume(one: Connection, topic: str, name: str) -> Connection:
    """Makes a connection a member of a consumer group."""
    answer = one.ask("HUBSUB", "SUBSCRIBE", topic, "AS", name)
    assert answer == [b"consuming", topic.encode(), name.encode()], answer
    return one


def pushed(one: Connection) -> list[bytes]:
    """The next output of the server; asserts that it is a push and no number."""
    said = one.read().plain()
    assert isinstance(said, list)
    return said


def records(one: Connection, count: int) -> list[tuple[bytes, bytes]]:
    """The next records of a member: position and payload each."""
    found = []
    for _ in range(count):
        kind, _, _, position, payload = pushed(one)
        assert kind == b"consume"
        found.append((position, payload))
    return found


def shown(server: Server, name: str, topic: str) -> dict[str, Any]:
    """The REST entry of a consumer."""
    found: dict[str, Any] = json.loads(
        server.get(f"/v1/consumers/{quote(name, safe='')}/{quote(topic, safe='')}")
    )
    return found


@pytest.mark.parametrize("kills", [False, True])
def test_a_group_goes_on_over_restarts_with_all_that_is_not_acknowledged(
    needs: Callable[..., None], tmp_path: Path, kills: bool
) -> None:
    needs("hubsub-core")
    with home(tmp_path / "data", classes=[KEPT]) as one:
        goes_on(one, kills)


def goes_on(node: Home, kills: bool) -> None:
    """A member acknowledges some records, the node ends, and the group's next member receives the others."""
    server = node.server
    with server.connect() as publisher, server.connect() as one:
        publisher.ask("PUBLISH", "kept:a", "before")
        consume(one, "kept:a", "billing")
        for i in range(10):
            assert publisher.ask("PUBLISH", "kept:a", i) == 1
        had = records(one, 10)
        assert [payload for _, payload in had] == [str(i).encode() for i in range(10)]
        assert one.ask("HUBSUB", "ACK", *(position for position, _ in (*had[:4], had[7]))) == 5
        assert one.ask("HUBSUB", "ACK", had[0][0]) == 0
        until(lambda: shown(server, "billing", "kept:a")["lag"] == 5, "five are left")
    with server.connect() as publisher:
        until(lambda: shown(server, "billing", "kept:a")["members"] == 0, "it is gone")
        # The group's position is retained while it has no members.
        assert publisher.ask("PUBLISH", "kept:a", "later") == 0
        until(lambda: shown(server, "billing", "kept:a")["lag"] == 6, "one more is left")
    server = node.restart(kills)
    assert shown(server, "billing", "kept:a")["lag"] >= 6, "it is known without a member, too"
    with server.connect() as one:
        consume(one, "kept:a", "billing")
        due = {b"4", b"5", b"6", b"8", b"9", b"later"}
        came: list[tuple[bytes, bytes]] = []
        while not due <= {payload for _, payload in came}:
            came += records(one, 1)
        # A record acknowledged just before the end may be redelivered; no record before it is.
        assert b"before" not in {payload for _, payload in came}
        one.ask("HUBSUB", "ACK", *(position for position, _ in came))
        until(lambda: shown(server, "billing", "kept:a")["lag"] == 0, "all is done")


def test_what_is_not_acknowledged_in_its_time_is_another_members_and_then_dead(
    serve: Callable[..., Server],
) -> None:
    server = serve(limits={"consumer_ack_ms": 1, "consumer_tries_max": 3})
    with (
        server.connect() as publisher,
        server.connect() as one,
        server.connect() as other,
        server.connect() as dead,
    ):
        for member in (one, other):
            consume(member, "kept:a", "g")
        dead.ask("SUBSCRIBE", "dead-letters/g/kept:a")
        publisher.ask("PUBLISH", "kept:a", "hard")
        _, topic, payload = pushed(dead)
        assert (topic, payload) == (b"dead-letters/g/kept:a", b"hard")
        until(lambda: shown(server, "g", "kept:a")["lag"] == 0, "it is nobody's any more")
        assert server.metric("consumers_redelivered_total") == 2
        for member in (one, other):
            member.command("PING")
        came = 0
        for member in (one, other):
            while (said := member.read().plain()) != b"PONG":
                assert isinstance(said, list)
                position = said[3]
                came += 1
        assert came == 3
        # A member receives one copy of a record, however often it was delivered.
        done = [member.ask("HUBSUB", "ACK", position) for member in (one, other)]
        assert set(done) <= {0, 1} and sum(done) in (1, 2), done  # type: ignore[arg-type,type-var]


def test_the_place_of_one_that_is_idle_is_kept_however_much_others_write_theirs(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits = {"log_segment_bytes": 64 << 10, "log_checkpoint_bytes": 64 << 10}
    with home(tmp_path / "data", classes=[KEPT], limits=limits) as node:
        server = node.server
        with server.connect() as publisher, server.connect() as idle, server.connect() as busy:
            consume(idle, "kept:a", "idle")
            publisher.ask("PUBLISH", "kept:a", "x")
            assert idle.ask("HUBSUB", "ACK", records(idle, 1)[0][0]) == 1
            until(lambda: shown(server, "idle", "kept:a")["lag"] == 0, "its place is written")
            consume(busy, "kept:b", "busy")

            def one_more_row() -> None:
                publisher.ask("PUBLISH", "kept:b", "x")
                busy.ask("HUBSUB", "ACK", records(busy, 1)[0][0])

            def hub() -> dict[str, Any]:
                found: dict[str, Any] = json.loads(server.get("/v1/hubs/%24consumer-0"))
                return found

            # A hub that trims only by age or bytes loses its first records; a copy of a late record makes it
            # smaller.
            was = 0
            while (now := hub()["bytes"]) >= was:
                was = now
                for _ in range(100):
                    one_more_row()
        server = node.restart(kills=True)
        with server.connect() as publisher, server.connect() as idle:
            publisher.ask("PUBLISH", "kept:a", "y")
            consume(idle, "kept:a", "idle")
            assert [payload for _, payload in records(idle, 1)] == [b"y"]


def test_a_group_is_given_no_more_than_its_window_and_the_rest_when_it_acknowledges(
    serve: Callable[..., Server],
) -> None:
    server = serve(limits={"consumer_window_records": 10})
    with server.connect() as publisher, server.connect() as one:
        consume(one, "kept:a", "g")
        for i in range(25):
            publisher.ask("PUBLISH", "kept:a", i)
        until(lambda: shown(server, "g", "kept:a")["lag"] == 25, "all are known")
        assert shown(server, "g", "kept:a")["delivered"] == 10
        until(lambda: server.metric("consumers_full_total") == 15, "15 wait")
        came, done = [], 0
        while done < 25:
            said = one.read().plain()
            if isinstance(said, list):
                came.append(said[4])
                one.command("HUBSUB", "ACK", said[3])
            else:
                assert said == 1
                done += 1
        assert came == [str(i).encode() for i in range(25)]
        until(lambda: shown(server, "g", "kept:a")["lag"] == 0, "all is done")


def test_members_of_all_protocols_share_and_what_one_that_is_gone_had_goes_to_another(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    assert server.node is not None
    with server.connect() as publisher, server.connect() as redis, Wire(server.node.mqtt) as mqtt:
        mqtt.connect("m")
        assert mqtt.subscribe(("$share/g/kept:a", 1)) == [1]
        consume(redis, "kept:a", "g")
        until(lambda: shown(server, "g", "kept:a")["members"] == 2, "both are known")
        for i in range(20):
            assert publisher.ask("PUBLISH", "kept:a", i) == 1
        until(lambda: server.metric("shares_delivered_total") == 20, "all are given")
        mqtt.ping()
        had = []
        while (packet := mqtt.read()).kind != PINGRESP:
            assert packet.kind == PUBLISH and packet.qos == 1
            had.append(packet)
        assert len(had) == 10
        for packet in had[:5]:
            mqtt.answer(PUBACK, packet.id)
        until(lambda: shown(server, "g", "kept:a")["lag"] == 15, "five are done")
        mqtt.close()
        came = records(redis, 15)
        assert {payload for _, payload in came} == {str(i).encode() for i in range(20)} - {
            packet.rest for packet in had[:5]
        }
        assert redis.ask("HUBSUB", "ACK", *(position for position, _ in came)) == 15
        until(lambda: shown(server, "g", "kept:a")["lag"] == 0, "all is done")
        clients = json.loads(server.get("/v1/clients?sort=messages_out"))["clients"]
        assert clients[0]["messages_out"] == 15 and clients[0]["bytes_out"] > 0


def test_a_consumer_is_listed_and_begins_anew_when_it_is_deleted(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as publisher, server.connect() as one:
        for name in ("b:illing", "audit"):
            consume(one, "kept:a/b", name)
        assert publisher.ask("PUBLISH", "kept:a/b", "x") == 2
        listed = json.loads(server.get("/v1/consumers"))["consumers"]
        assert [(row["group"], row["topic"]) for row in listed] == [
            ("audit", "kept:a/b"),
            ("b:illing", "kept:a/b"),
        ]
    until(lambda: shown(server, "audit", "kept:a/b")["members"] == 0, "it is gone")
    assert shown(server, "audit", "kept:a/b")["lag"] == 1
    url = f"{server.node.http_url if server.node else ''}/v1/consumers/audit/{quote('kept:a/b', safe='')}"
    with urllib.request.urlopen(urllib.request.Request(url, method="DELETE")) as answer:
        assert answer.status == 204
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"))
    assert refused.value.code == 404
    assert json.loads(refused.value.read())["code"] == "no_such_consumer"
    with server.connect() as publisher, server.connect() as one:
        consume(one, "kept:a/b", "audit")
        until(lambda: shown(server, "audit", "kept:a/b")["lag"] == 0, "it begins with what comes now")
        publisher.ask("PUBLISH", "kept:a/b", "y")
        assert [payload for _, payload in records(one, 1)] == [b"y"]


def test_one_group_too_many_is_refused(serve: Callable[..., Server]) -> None:
    server = serve(limits={"groups_max": 2})
    with server.connect() as one, server.connect() as other:
        consume(one, "kept:a", "g")
        consume(one, "kept:b", "g")
        told = b"ERR max number of groups that share messages reached; hint: groups_max"
        assert bytes(other.call("HUBSUB", "SUBSCRIBE", "kept:c", "AS", "g").value) == told  # type: ignore[arg-type]
        consume(other, "kept:a", "g")
        assert server.node is not None
        with Wire(server.node.mqtt) as third:
            third.connect("third", V5)
            assert third.subscribe(("$share/h/kept/#", 1)) == [0x97]
        assert server.metric("subscriptions_refused_total") == 2
    with server.connect() as one:
        until(lambda: shown(server, "g", "kept:a")["members"] == 0, "its members are gone")
        until(
            lambda: one.call("HUBSUB", "SUBSCRIBE", "kept:c", "AS", "g").kind != "-", "there is place again"
        )
        # The consumer's persisted entry supplies what memory has no room for.
        assert shown(server, "g", "kept:a")["lag"] == 0


def test_what_is_no_consumer_is_refused(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as one:
        for topic, name in (("kept:+", "g"), ("#", "g"), ("kept:a", "a/b"), ("kept:a", ""), ("", "g")):
            refused = one.call("HUBSUB", "SUBSCRIBE", topic, "AS", name)
            assert refused.kind == "-" and b"a consumer is of a topic" in bytes(refused.value), refused  # type: ignore[arg-type]
        assert one.call("HUBSUB", "ACK", "7").kind == "-"
        assert one.ask("HUBSUB", "ACK", "7-1") == 0
        assert one.call("HUBSUB", "SUBSCRIBE", "kept:a", "LAST", "1", "x").kind == "-"


def test_in_a_class_without_a_log_members_share_what_comes_live(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as publisher, server.connect() as one, server.connect(resp=3) as other:
        for member in (one, other):
            consume(member, "plain", "g")
        for i in range(6):
            assert publisher.ask("PUBLISH", "plain", i) == 1
        assert len(records(one, 3)) == 3
        one.close()
        # Records that it did not acknowledge go to the other member.
        assert {payload for _, payload in records(other, 6)} == {str(i).encode() for i in range(6)}
        assert json.loads(server.get("/v1/consumers"))["consumers"] == []


def test_the_python_client_takes_part_and_acknowledges(serve: Callable[..., Server]) -> None:
    server = serve()

    async def run() -> None:
        async with Client(server.url) as client:
            async with client.consume("kept:a", "one", group="g") as first:
                for i in range(3):
                    assert await client.publish("kept:a", str(i)) == 1
                had = [await anext(first) for _ in range(3)]
                assert [record.payload for record in had] == [b"0", b"1", b"2"]
                assert await first.ack(*had[:2]) == 2
            async with client.consume("kept:a", "two", group="g") as second:
                record = await anext(second)
                assert record.payload == b"2" and record.position == had[2].position
                assert await second.ack(record) == 1

    asyncio.run(run())
    until(lambda: shown(server, "g", "kept:a")["lag"] == 0, "all is done")


def test_the_blocking_client_takes_part_and_what_it_does_not_acknowledge_is_the_next_ones(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    with BlockingClient(server.url) as client:
        with client.consume("kept:a", "one", group="g") as first:
            assert client.publish_many([("kept:a", str(i)) for i in range(3)]) == [1, 1, 1]
            had = list(islice(first, 3))
            assert [record.payload for record in had] == [b"0", b"1", b"2"]
            assert first.ack(*had[:2]) == 2
            assert first.ack(had[0]) == 0, "it is done with"
        with client.consume("kept:a", "g") as second:
            record = second.get()
            assert record is not None and (record.payload, record.position) == (b"2", had[2].position)
            assert second.ack(record) == 1
            with pytest.raises(ClientError, match="nothing to acknowledge"):
                second.ack()
        with pytest.raises(NotConnectedError):
            second.ack(record)
        with pytest.raises(ReplyError, match="a consumer is of a topic"):
            client.consume("kept:+", "g")
    until(lambda: shown(server, "g", "kept:a")["lag"] == 0, "all is done")


def test_the_command_lists_shows_and_deletes_consumers(serve: Callable[..., Server]) -> None:
    server = serve()
    assert server.node is not None
    where = ("--url", server.node.http_url)
    with server.connect() as publisher, server.connect() as one:
        consume(one, "kept:x/y", "a b")
        publisher.ask("PUBLISH", "kept:x/y", "1")
        until(lambda: shown(server, "a b", "kept:x/y")["delivered"] == 1, "it is given")
        (row,) = [json.loads(line) for line in hubsub("consumer", "ls", "--json", *where).stdout.splitlines()]
        assert (row["group"], row["topic"], row["lag"], row["delivered"], row["members"]) == (
            "a b",
            "kept:x/y",
            1,
            1,
            1,
        )
        assert "kept:x/y" in hubsub("consumer", "ls", *where).stdout
    shows = hubsub("consumer", "show", "a b", "kept:x/y", "--json", *where)
    assert json.loads(shows.stdout)["position"] == row["position"], shows
    assert hubsub("consumer", "delete", "a b", "kept:x/y", *where).returncode == 0
    for command in ("show", "delete"):
        gone = hubsub("consumer", command, "a b", "kept:x/y", *where)
        assert gone.returncode == 1 and "no such consumer: a b of kept:x/y" in gone.stderr
