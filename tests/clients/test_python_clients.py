"""redis-py and valkey-py, blocking, in RESP2 and RESP3, with each of their parsers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import redis._parsers
import valkey

from clients.raw import TIMEOUT_S
from clients.servers import Server

_PURE = {2: redis._parsers._RESP2Parser, 3: redis._parsers._RESP3Parser}


@dataclass(frozen=True)
class Library:
    """A way to make a client."""

    name: str
    protocol: int
    make: Callable[..., Any]


def _redis_py(protocol: int, parser: type) -> Library:
    def make(**options: Any) -> redis.Redis:
        pool = redis.ConnectionPool(protocol=protocol, parser_class=parser, **options)
        return redis.Redis.from_pool(pool)

    return Library("redis", protocol, make)


def _valkey_py(protocol: int) -> Library:
    return Library("valkey", protocol, lambda **options: valkey.Valkey(protocol=protocol, **options))


LIBRARIES = {
    "redis-py-resp2-pure": _redis_py(2, _PURE[2]),
    "redis-py-resp3-pure": _redis_py(3, _PURE[3]),
    "redis-py-resp2-hiredis": _redis_py(2, redis._parsers._HiredisParser),
    "redis-py-resp3-hiredis": _redis_py(3, redis._parsers._HiredisParser),
    "valkey-py-resp2": _valkey_py(2),
    "valkey-py-resp3": _valkey_py(3),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """Each library, protocol and parser."""
    return LIBRARIES[request.param]


@pytest.fixture
def make(library: Library, server: Server) -> Iterator[Callable[..., Any]]:
    """Makes connected clients of that library, and closes them."""
    made: list[Any] = []

    def make_one(**options: Any) -> Any:
        made.append(library.make(host=server.host, port=server.port, socket_timeout=TIMEOUT_S, **options))
        return made[-1]

    yield make_one
    for client in made:
        client.close()


@pytest.fixture
def client(make: Callable[..., Any]) -> Any:
    """A client with the library's defaults."""
    return make()


def receive(pubsub: Any, count: int) -> list[dict[str, Any]]:
    """The next `count` messages of a pubsub object."""
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        message = pubsub.get_message(timeout=TIMEOUT_S)
        assert message is not None, f"only {messages}"
        messages.append(message)
    return messages


def kinds(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Type, channel and data of messages."""
    return [(m["type"], m["channel"], m["data"]) for m in messages]


def test_subscribe_and_publish(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("one", "two")
        assert sorted(m["channel"] for m in receive(pubsub, 2)) == [b"one", b"two"]
        assert client.publish("one", "hello") == 1
        assert client.publish("two", b"\x00\xff") == 1
        assert client.publish("three", "nobody") == 0
        heard = [("message", b"one", b"hello"), ("message", b"two", b"\x00\xff")]
        assert sorted(kinds(receive(pubsub, 2))) == heard, "rooms have no order between them"
        pubsub.unsubscribe("one")
        assert kinds(receive(pubsub, 1)) == [("unsubscribe", b"one", 1)]
        pubsub.unsubscribe()
        assert kinds(receive(pubsub, 1)) == [("unsubscribe", b"two", 0)]


def test_a_pattern_and_a_channel_both_deliver_and_the_channel_first(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.psubscribe("n[e-g]ws*")
        pubsub.subscribe("news.it")
        receive(pubsub, 2)
        assert client.publish("news.it", "x") == 2
        first, second = receive(pubsub, 2)
        assert (first["type"], first["pattern"]) == ("message", None)
        assert (second["type"], second["pattern"], second["channel"]) == (
            "pmessage",
            b"n[e-g]ws*",
            b"news.it",
        )


def test_shard_channels(library: Library, client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.ssubscribe("{room}a")
        assert kinds(receive(pubsub, 1)) == [("ssubscribe", b"{room}a", 1)]
        assert client.spublish("{room}a", "x") == 1
        assert client.publish("{room}a", "no") == 0
        assert kinds(receive(pubsub, 1)) == [("smessage", b"{room}a", b"x")]
        assert client.pubsub_shardchannels() == [b"{room}a"]
        assert [tuple(row) for row in client.pubsub_shardnumsub("{room}a")] == [(b"{room}a", 1)]
        pubsub.sunsubscribe("{room}a")
        assert kinds(receive(pubsub, 1)) == [("sunsubscribe", b"{room}a", 0)]


def test_the_default_pipeline_is_a_transaction(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("c")
        receive(pubsub, 1)
        with client.pipeline() as pipeline:
            for i in range(100):
                pipeline.publish("c", i)
            pipeline.echo("end")
            assert pipeline.execute() == [1] * 100 + [b"end"]
        assert [m["data"] for m in receive(pubsub, 100)] == [b"%d" % i for i in range(100)]


def test_a_pipeline_without_transaction(client: Any) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for i in range(100):
            pipeline.publish("c", i).ping()
        assert pipeline.execute() == [0, True] * 100


def test_an_error_in_a_transaction_is_raised_and_the_connection_goes_on(
    library: Library, client: Any
) -> None:
    errors = {"redis": redis.exceptions, "valkey": valkey.exceptions}[library.name]
    with client.pipeline() as pipeline:
        pipeline.publish("c", "x").execute_command("NOSUCH", "a")
        with pytest.raises(errors.ResponseError, match="unknown command 'NOSUCH'"):
            pipeline.execute()
    with pytest.raises(errors.ResponseError, match="wrong number of arguments for 'publish' command"):
        client.execute_command("PUBLISH", "x")
    assert client.ping() is True


def test_watch_and_multi(client: Any) -> None:
    with client.pipeline() as pipeline:
        pipeline.watch("key")
        pipeline.multi()
        pipeline.publish("c", "x")
        assert pipeline.execute() == [0]
        pipeline.watch("key")
        pipeline.unwatch()


def test_health_checks_while_subscribed_and_not(make: Callable[..., Any]) -> None:
    client = make(health_check_interval=1e-9)
    assert client.echo("x") == b"x"
    with client.pubsub() as pubsub:
        pubsub.subscribe("c")
        receive(pubsub, 1)
        for i in range(3):
            client.publish("c", i)
            message = None
            while message is None:
                message = pubsub.get_message(timeout=TIMEOUT_S)
            assert message["data"] == b"%d" % i


def test_ping_while_subscribed(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("c")
        receive(pubsub, 1)
        pubsub.ping("are you there")
        client.publish("c", "x")
        message = None
        while message is None or message["type"] != "message":
            message = pubsub.get_message(timeout=TIMEOUT_S)
        assert message["data"] == b"x"


def test_names_and_library_are_shown(library: Library, make: Callable[..., Any]) -> None:
    client = make(client_name="me")
    assert client.client_getname() in ("me", b"me")
    assert client.client_setname("you") is True
    info = client.client_info()
    assert info["name"] == "you"
    assert int(info["id"]) == client.client_id()
    assert int(info["resp"]) == library.protocol


def test_a_killed_subscriber_reconnects_and_subscribes_again(
    library: Library, make: Callable[..., Any]
) -> None:
    module = {"redis": redis, "valkey": valkey}[library.name]
    retry = module.retry.Retry(module.backoff.NoBackoff(), 1)
    client = make(retry=retry, retry_on_error=[module.exceptions.ConnectionError])
    with client.pubsub() as pubsub:
        pubsub.subscribe("again")
        receive(pubsub, 1)
        assert client.client_kill_filter(_type="pubsub") == 1
        assert kinds(receive(pubsub, 1)) == [("subscribe", b"again", 1)]
        assert client.publish("again", "x") == 1
        assert kinds(receive(pubsub, 1)) == [("message", b"again", b"x")]


def test_introspection(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("in.a", "in.b")
        pubsub.psubscribe("in.*")
        receive(pubsub, 3)
        assert sorted(client.pubsub_channels("in.*")) == [b"in.a", b"in.b"]
        assert [tuple(row) for row in client.pubsub_numsub("in.a", "nobody")] == [
            (b"in.a", 1),
            (b"nobody", 0),
        ]
        assert client.pubsub_numpat() == 1


def test_the_small_commands(client: Any) -> None:
    assert client.ping() is True
    assert client.echo("x") == b"x"
    assert client.time()[0] > 1_600_000_000
    assert client.info()["loading"] in (0, "0")
    assert client.config_get("no-such-parameter") == {}
    assert client.command_count() > 20
    assert client.flushall() is True
    assert client.execute_command("SELECT", 0)


def test_username_and_password_of_the_open_default_user(make: Callable[..., Any]) -> None:
    assert make(username="default", password="any").ping() is True


def test_a_wrong_user_is_refused(library: Library, make: Callable[..., Any]) -> None:
    errors = {"redis": redis.exceptions, "valkey": valkey.exceptions}[library.name]
    with pytest.raises(errors.AuthenticationError, match="invalid username-password pair"):
        make(username="nobody", password="secret").ping()


def test_a_listener_thread_with_handlers(client: Any) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def handler(message: dict[str, Any]) -> None:
        got.append(message["data"])
        if len(got) == 10:
            done.set()

    pubsub = client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(handled=handler)
    receive_confirmation = pubsub.get_message(timeout=TIMEOUT_S)
    assert receive_confirmation is None
    thread = pubsub.run_in_thread(sleep_time=0.01)
    try:
        for i in range(10):
            assert client.publish("handled", i) == 1
        assert done.wait(TIMEOUT_S)
    finally:
        thread.stop()
        thread.join(TIMEOUT_S)
        pubsub.close()
    assert got == [b"%d" % i for i in range(10)]


def test_large_payloads(client: Any) -> None:
    payload = bytes(range(256)) * 8192
    with client.pubsub() as pubsub:
        pubsub.subscribe("large")
        receive(pubsub, 1)
        assert client.publish("large", payload) == 1
        assert receive(pubsub, 1)[0]["data"] == payload


def test_decoded_responses(make: Callable[..., Any]) -> None:
    client = make(decode_responses=True)
    with client.pubsub() as pubsub:
        pubsub.subscribe("grüße")
        receive(pubsub, 1)
        client.publish("grüße", "wörld ✓")
        assert kinds(receive(pubsub, 1)) == [("message", "grüße", "wörld ✓")]
