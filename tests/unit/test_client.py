"""The asyncio and the blocking client, against a fake HubSub that can fail, and a real Redis."""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hubsub.client import BlockingClient, Client, Position
from hubsub.client.connection import Connection, targets
from hubsub.errors import ClientError, NotConnectedError, ReplyError, TimedOutError

from .fake_server import FakeServer


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


async def test_history_reads_rows_and_says_when_a_position_is_unknown(server: FakeServer) -> None:
    for payload in (b"1", b"2", b"3"):
        server.publish(b"room", payload)
    async with Client(server.url) as client:
        history = await client.history("room", count=2)
        assert [(r.payload, r.position) for r in history.records] == [(b"2", (7, 2)), (b"3", (7, 3))]
        assert history.records[0].publisher == "me" and history.records[0].timestamp_ms == 1_001
        assert [r.payload for r in (await client.history("room", after=Position(7, 2))).records] == [b"3"]
        assert not (await client.history("room", after="9-1")).recovered
        assert await client.locate("room") == [("one", "127.0.0.1:1")]


async def test_no_answer_in_time_leaves_the_outcome_unknown(server: FakeServer) -> None:
    server.silent.add(b"PUBLISH")
    async with Client(server.url, timeout_s=0.05) as client:
        with pytest.raises(TimedOutError):
            await client.publish("room", "x")
        server.silent.clear()
        assert await client.publish("room", "x") == 0


async def test_a_connection_cut_after_sending_leaves_the_outcome_unknown(server: FakeServer) -> None:
    server.silent.add(b"PUBLISH")
    async with Client(server.url) as client:
        publishing = asyncio.ensure_future(client.publish("room", "x"))
        await server.seen(b"PUBLISH", b"room", b"x")
        server.cut()
        with pytest.raises(TimedOutError):
            await publishing


@pytest.mark.parametrize("what", [5, True, None, 1.5, ["a"], {"a": 1}, object()])
async def test_what_is_neither_text_nor_bytes_is_refused_and_not_sent(server: FakeServer, what: Any) -> None:
    name = type(what).__name__
    async with Client(server.url) as client:
        for topic, payload in (("room", what), (what, "x")):
            with pytest.raises(TypeError, match=f"expected str or bytes, got {name}"):
                await client.publish(topic, payload)
            with pytest.raises(TypeError, match=name):
                await client.publish_many([(topic, payload)])
        with pytest.raises(TypeError, match=name):
            client.subscribe(what)
        for payload in ("x", b"x", bytearray(b"x"), memoryview(b"x")):
            await client.publish("room", payload)  # type: ignore[arg-type]

    def block() -> None:
        with BlockingClient(server.url) as client, pytest.raises(TypeError, match=f"got {name}"):
            client.publish("room", what)

    await asyncio.to_thread(block)
    assert server.log == {b"room": [b"x"] * 4}


async def test_publishes_of_a_batch_keep_their_order(server: FakeServer) -> None:
    async with Client(server.url) as client:
        assert await client.publish_many([("room", str(i)) for i in range(3_000)]) == [0] * 3_000
    assert server.log[b"room"] == [str(i).encode() for i in range(3_000)]


async def test_what_of_a_batch_was_answered_before_a_failure_is_told(server: FakeServer) -> None:
    told: list[int] = []
    real, answers = server.publish, asyncio.Event()

    def publish(topic: bytes, payload: bytes) -> int:
        if payload == b"4":
            server.silent.add(b"PUBLISH")  # From the next publish on.
        return real(topic, payload)

    def on_answer(receivers: int) -> None:
        told.append(receivers)
        if len(told) == 5:
            answers.set()

    server.publish = publish  # type: ignore[method-assign]
    async with asyncio.timeout(30), Client(server.url) as client, client.subscribe("room"):
        batch = [("room", str(n)) for n in range(9)]
        publishing = asyncio.ensure_future(client.publish_many(batch, on_answer=on_answer))
        await answers.wait()
        server.cut()
        with pytest.raises(TimedOutError):
            await publishing
    assert told == [1] * 5


async def test_the_next_server_of_the_list_is_tried(server: FakeServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]},127.0.0.1:{server.port}"
        async with Client(url) as client:
            assert await client.publish("room", "x") == 0


async def test_nobody_there_is_an_error_that_names_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(NotConnectedError, match="Connection refused"):
            await Client(f"redis://127.0.0.1:{port}").publish("room", "x")


async def test_a_refused_greeting_is_the_servers_own_error(server: FakeServer) -> None:
    server.refuse_greeting = b"-ERR max number of clients reached\r\n"
    with pytest.raises(ReplyError, match="max number of clients"):
        await Client(server.url).ping()


@pytest.mark.parametrize(
    "arguments",
    [{"last": 1, "since_ms": 2}, {"patterns": ["x"], "last": 1}, {"resume": "no position"}],
)
async def test_what_cannot_be_subscribed_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ClientError):
        Client("127.0.0.1:1").subscribe("a", **arguments)


async def test_nothing_to_subscribe_to_is_refused() -> None:
    with pytest.raises(ClientError):
        Client("127.0.0.1:1").subscribe()


def test_addresses_have_users_lists_and_defaults() -> None:
    one, two = targets("redis://me:p%40ss@host:1,[::1]")
    assert (one.host, one.port, one.username, one.password) == ("host", 1, "me", "p@ss")
    assert (two.host, two.port) == ("::1", 3221)
    assert str(targets("localhost")[0]) == "localhost:3221"
    for text in ("http://x", "redis://x:port", "redis://x/1"):
        with pytest.raises(ClientError):
            targets(text)


async def test_plain_redis_works_where_no_hubsub_command_is_needed(redis_server: tuple[str, int]) -> None:
    url = "redis://{}:{}".format(*redis_server)
    async with Client(url) as client, client.subscribe("a", patterns=["a*"]) as records:
        assert await client.publish("a", b"\x00\xff") == 2
        exact, matched = await anext(records), await anext(records)
        assert (exact.payload, exact.position, exact.pattern) == (b"\x00\xff", None, None)
        assert (matched.payload, matched.pattern) == (b"\x00\xff", b"a*")
        assert not records.is_hubsub
        with pytest.raises(ReplyError):
            await client.history("a")
    with pytest.raises(ClientError, match="no history"):
        async with Client(url) as client, client.subscribe("a", last=1):
            pass


async def test_a_client_closed_while_it_connects_leaves_no_connection(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, go_on, opened = asyncio.Event(), asyncio.Event(), []
    real = Connection.open

    async def late(self: Connection, name: str | None = None) -> None:
        connecting.set()
        await go_on.wait()
        await real(self, name)
        opened.append(self)

    monkeypatch.setattr(Connection, "open", late)
    client = Client(server.url)
    records = client.subscribe("room")
    asking = [asyncio.ensure_future(work) for work in (client.ping(), records.open())]
    await connecting.wait()
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    await asyncio.wait(asking)
    assert all(connection.error is not None for connection in opened)


async def test_refused_publishes_of_a_batch_are_no_news_for_the_log(server: FakeServer) -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    async with Client(server.url) as client:
        server.refuse.add(b"PUBLISH")
        with pytest.raises(ReplyError):
            await client.publish_many([("room", "x")] * 100)
        await client.ping()
    gc.collect()
    assert told == []


async def test_a_server_that_does_not_read_is_given_up_in_time(server: FakeServer) -> None:
    async with asyncio.timeout(30), Client(server.url, timeout_s=0.1) as client:
        server.deaf.set()
        with pytest.raises(TimedOutError):
            await client.publish("room", b"x" * (64 << 20))


@pytest.mark.parametrize("host", ["a..b", "x" * 100])
async def test_a_host_that_cannot_be_is_told_as_not_connected(host: str) -> None:
    with pytest.raises(NotConnectedError, match="no server can be reached") as caught:
        await Client(f"redis://{host}:1").ping()
    assert "Unknown error" not in str(caught.value)


async def test_the_blocking_client_takes_what_is_there_without_waiting(server: FakeServer) -> None:
    def play() -> list[bytes]:
        with BlockingClient(server.url) as client, client.subscribe("room") as records:
            client.publish("room", "1")
            client.publish("room", "2")
            first = records.get(30)
            while not (second := records.get(0)):
                client.ping()
            assert records.get(0) is None and first is not None
            return [first.payload, second.payload]

    async with asyncio.timeout(30):
        assert await asyncio.to_thread(play) == [b"1", b"2"]


async def test_closing_the_blocking_client_ends_what_other_threads_wait_for(server: FakeServer) -> None:
    server.silent.add(b"PUBLISH")

    def play() -> None:
        client = BlockingClient(server.url, timeout_s=1_000)
        records = client.subscribe("room")
        ends: list[object] = []

        def publish() -> None:
            try:
                client.publish("room", "x")
            except Exception as error:
                ends.append(error)

        threads = [threading.Thread(target=lambda: ends.append(records.get()))]
        threads += [threading.Thread(target=publish) for _ in range(3)]
        for thread in threads:
            thread.start()
        client.close()
        client.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(ends) == 4

    await asyncio.to_thread(play)


async def test_the_blocking_client_cannot_be_asked_in_its_own_callback(server: FakeServer) -> None:
    def play() -> None:
        with BlockingClient(server.url) as client:
            with client.subscribe("room", on_gap=lambda gap: client.ping()) as records:
                loop.call_soon_threadsafe(server.push, b"gap", b"room", b"7-2", b"7-5")
                with pytest.raises(ClientError, match="own client"):
                    records.get(30)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(play)


def test_the_blocking_client_does_the_same(redis_server: tuple[str, int]) -> None:
    with BlockingClient("redis://{}:{}".format(*redis_server)) as client:
        client.ping()
        with client.subscribe("b") as records:
            assert client.publish("b", "1") == 1
            assert client.publish_many([("b", "2"), ("b", "3")]) == [1, 1]
            assert [records.get(5).payload for _ in range(3)] == [b"1", b"2", b"3"]  # type: ignore[union-attr]
            assert records.get(timeout_s=0) is None
    with pytest.raises(NotConnectedError):
        client.ping()
