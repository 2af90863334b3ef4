"""Stores that persist MQTT sessions beyond their process: each passes the same suite and reports its
failures."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import CONNACK, PUBACK, PUBLISH, V5, V311
from clients.mqtt_sessions import acknowledge, expiry, payload, say
from clients.servers import Server, free_port, redis_server, until
from command_line import hubsub

from hubsub.testing import Node
from node.conftest import Start
from node.home import Home
from node.test_mqtt import begin, client, wire
from node.test_mqtt_sessions import come, leave, nothing_more
from node.test_mqtt_sessions_cursors import EVERYWHERE

Config = dict[str, Any]

PASSWORD = "not-to-be-told"


@pytest.fixture
def redis(needs: Any) -> Iterator[Server]:
    """A redis-server with a named user and a password."""
    needs("redis-server")
    with redis_server("--user", "hub", "on", f">{PASSWORD}", "~*", "+@all") as server:
        yield server


def url(redis: Server) -> str:
    """The session store's URL in that server."""
    return f"redis://hub:{PASSWORD}@{redis.host}:{redis.port}/3"


@pytest.fixture(params=["log", "memory", "disk", "redis"])
def store(request: pytest.FixtureRequest, data: Path) -> Config:
    """The configuration of a node with that store."""
    where = url(request.getfixturevalue("redis")) if request.param == "redis" else request.param
    return {"data": str(data), "inflight_store": where}


def figures(server: Server) -> dict[str, float]:
    """Metrics of the store."""
    rows = (line.rpartition(" ") for line in server.get("/metrics").decode().splitlines())
    prefix = "hubsub_inflight_store_"
    return {name.removeprefix(prefix): float(value) for name, _, value in rows if name.startswith(prefix)}


def ready(server: Server) -> dict[str, Any]:
    """The response of /readyz."""
    answer: dict[str, Any] = json.loads(server.get("/readyz"))
    return answer


def refusal(*args: str, **env: str) -> str:
    """The error output of a node that does not start."""
    run = hubsub("serve", "--redis", "127.0.0.1:0", "--http", "127.0.0.1:0", *args, **env)
    assert run.returncode != 0 and PASSWORD not in run.stderr + run.stdout
    return run.stderr


# --- all stores


def test_a_session_survives_a_reconnect(start: Start, store: Config) -> None:
    server = begin(start, config=store)
    one, present = come(server)
    assert not present
    one.subscribe(("a/#", 2))
    leave(server, one)
    with client(server, "publisher") as publisher:
        for qos in (1, 2):
            say(publisher, f"a/{qos}", b"%d" % qos, qos)
    one, present = come(server)
    assert present
    for qos in (1, 2):
        message = one.read(PUBLISH)
        assert (payload(one, message), message.qos) == (b"%d" % qos, qos)
        acknowledge(one, message)
    nothing_more(one)


@pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
def test_a_session_survives_a_restart_where_its_store_does(data: Path, store: Config, kills: bool) -> None:
    home = Home(data, 2, {"mqtt": "127.0.0.1:0", "node": "one", **store})
    server = home.start()
    try:
        for name in ("kept", "ended"):
            one, _ = come(server, name)
            one.subscribe(("a/#", 1))
            leave(server, one)
        with client(server, "publisher") as publisher:
            for qos in (1, 2):
                say(publisher, f"a/{qos}", b"%d" % qos, qos)
        one, present = come(server, "ended", clean=True, expiry_s=0)
        assert not present, "the one before has ended"
        server = home.restart(kills)
        _, present = come(server, "ended")
        assert not present
        one, present = come(server, "kept")
        assert present == (store["inflight_store"] != "memory")
        if present:
            for number in (b"1", b"2"):
                message = one.read(PUBLISH)
                assert (payload(one, message), message.qos) == (number, 1)
                acknowledge(one, message)
            with client(server, "publisher") as publisher:
                say(publisher, "a/b", b"still subscribed", 1)
            assert payload(one, one.read(PUBLISH)) == b"still subscribed"
    finally:
        home.kill()


def test_what_gave_way_in_a_long_queue_is_not_kept_and_what_waits_is(data: Path, store: Config) -> None:
    if store["inflight_store"] == "memory":
        return
    limits = {"mqtt_session_queue_messages_max": 20}
    home = Home(data, 1, {"mqtt": "127.0.0.1:0", "node": "one", **store}, limits=limits)
    server = home.start()
    try:
        one, _ = come(server)
        one.subscribe(("a", 1))
        leave(server, one)
        with client(server, "publisher") as publisher:
            for number in range(1_100):
                say(publisher, "a", b"%d" % number, 1)
        server = home.restart()
        one, present = come(server)
        assert present
        for number in range(1_080, 1_100):
            message = one.read(PUBLISH)
            assert payload(one, message) == b"%d" % number
            acknowledge(one, message)
        nothing_more(one)
    finally:
        home.kill()


def test_a_file_or_a_server_is_looked_at_and_others_have_nothing_to_tell(start: Start, store: Config) -> None:
    server = begin(start, config=store)
    assert ready(server)["reasons"] == []
    if store["inflight_store"] in ("log", "memory"):
        assert figures(server) == {}
        return
    until(lambda: figures(server)["requests_total"] >= 2, "it is looked at also where nobody needs it")
    told = figures(server)
    assert (told["up"], told["errors_total"], told["refused_total"]) == (1, 0, 0)
    assert told["batches_total"] >= 1 and told["batch_seconds_total"] > 0


# --- the file store


def test_a_node_does_not_start_on_a_damaged_file_of_sessions(data: Path, start: Start) -> None:
    config = {"data": str(data), "inflight_store": "disk"}
    with Node(config=config) as node:
        node.stop(signal.SIGTERM)
    file = data / "sessions.redb"
    whole = file.read_bytes()
    file.write_bytes(b"\0" * 4096 + whole[4096:])
    told = refusal("--data", str(data), "--inflight-store", "disk")
    assert f"cannot open inflight_store: {file} is damaged" in told
    assert "hint: bring the file back from a copy" in told
    assert file.read_bytes()[:4096] == b"\0" * 4096, "it is left as it is"
    file.write_bytes(whole)
    assert figures(start(config=config))["up"] == 1


def test_a_file_of_sessions_needs_a_data_directory() -> None:
    told = refusal("--inflight-store", "disk")
    assert "needs a data directory" in told and "--data DIR" in told


# --- the Redis store


def test_a_node_does_not_start_without_its_server_of_sessions() -> None:
    where = f"127.0.0.1:{free_port()}"
    env = {
        "HUBSUB_INFLIGHT_STORE": f"redis://hub:{PASSWORD}@{where}",
        "HUBSUB_LIMITS_INFLIGHT_STORE_TIMEOUT_MS": "1",
    }
    told = refusal(**env)
    assert f"cannot open inflight_store: Redis at {where}" in told
    assert "hint: start the server, then the node" in told


def test_a_url_that_names_no_server_of_sessions_is_refused() -> None:
    assert "log, memory, disk, redis://" in refusal("--inflight-store", "http://localhost")
    assert "cannot open inflight_store: no server has this URL" in refusal(
        "--inflight-store", "redis://localhost/x"
    )


def test_an_end_that_the_server_was_not_there_for_follows_when_it_is(start: Start, redis: Server) -> None:
    config = {"inflight_store": url(redis)}
    with ExitStack() as stack, redis.connect() as keys:
        server = begin(start, config=config, limits={"inflight_store_timeout_ms": 50})
        keys.ask("AUTH", "hub", PASSWORD)
        keys.ask("SELECT", "3")
        one, _ = come(server, "ends")
        leave(server, come(server, "stays")[0])
        assert len(keys.ask("KEYS", "*:session:*")) == 2  # type: ignore[arg-type]
        os.kill(redis.pid, signal.SIGSTOP)
        stack.callback(os.kill, redis.pid, signal.SIGCONT)
        # From now on nothing is sent to it.
        until(lambda: figures(server)["up"] == 0, "it does not answer")
        one.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00")
        one.read_all()
        until(lambda: server.metric("mqtt_session_unwritten_total") > 0, "its end is refused")
        os.kill(redis.pid, signal.SIGCONT)
        until(lambda: len(keys.ask("KEYS", "*:session:*")) == 1, "it is ended again")  # type: ignore[arg-type]
        assert come(server, "stays")[1]


def test_a_snapshot_that_the_server_was_not_there_for_stops_no_delivery(
    data: Path, start: Start, redis: Server
) -> None:
    config = {"data": str(data), "inflight_store": url(redis)}
    limits = {"inflight_store_timeout_ms": 50, "mqtt_session_snapshot_ms": 100}
    with ExitStack() as stack:
        server = begin(start, config=config, limits=limits, classes=[EVERYWHERE])
        publisher = stack.enter_context(client(server, "publisher"))
        one, _ = come(server, "one")
        assert one.subscribe(("log/a", 2)) == [2]
        publisher.publish("log/a", b"first", 1, 1)
        message = one.read(PUBLISH)
        os.kill(redis.pid, signal.SIGSTOP)
        stack.callback(os.kill, redis.pid, signal.SIGCONT)
        one.answer(PUBACK, message.id)
        until(lambda: server.metric("mqtt_session_unwritten_total") > 0, "where it stands is not recorded")
        os.kill(redis.pid, signal.SIGCONT)
        until(lambda: figures(server)["up"] == 1, "it answers again")
        publisher.publish("log/a", b"second", 2, 2)
        assert (one.read(PUBLISH).qos, one.version) == (2, V5)


def test_a_server_of_sessions_that_says_nothing_is_told_until_it_answers_again(
    start: Start, redis: Server
) -> None:
    config = {"inflight_store": url(redis)}
    with ExitStack() as stack:
        server = begin(start, config=config, limits={"inflight_store_timeout_ms": 50})
        os.kill(redis.pid, signal.SIGSTOP)
        stack.callback(os.kill, redis.pid, signal.SIGCONT)
        until(lambda: figures(server)["up"] == 0, "it does not answer")
        assert figures(server)["errors_total"] >= 1
        (reason,) = ready(server)["reasons"]
        assert reason.startswith("MQTT clients whose sessions are kept are refused: Redis at ")
        assert PASSWORD not in reason and PASSWORD not in server.log_line(
            "the store of sessions does not answer"
        )
        assert server.node
        doctor = hubsub("doctor", "--url", server.node.http_url)
        assert "MQTT clients whose sessions are kept are refused" in doctor.stdout
        for version, code in ((V5, 0x88), (V311, 3)):
            answer = wire(server).connect("kept", version, expiry(60) if version == V5 else b"", flags=0)
            assert (answer.kind, answer.body[1]) == (CONNACK, code)
        client(server, "not kept").ping()
    until(lambda: figures(server)["up"] == 1, "it answers again")
    assert ready(server)["reasons"] == []
    server.log_line("the store of sessions answers again")
    one, _ = come(server, "kept")
    assert one.subscribe(("a", 1)) == [1]
