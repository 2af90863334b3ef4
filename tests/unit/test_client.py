"""The asyncio and the blocking client, against a fake HubSub that can fail, and a real Redis."""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hubsub.client import BlockingClient, Client, Gap, Options, Position
from hubsub.client.connection import Connection, targets
from hubsub.client.subscription import QUEUE_RECORDS_MAX
from hubsub.errors import ClientError, NotConnectedError, ReplyError, TimedOutError

from .fake_server import FakeServer

QUICK = Options(backoff_s=0.001, backoff_s_max=0.01)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


async def test_a_record_comes_with_topic_payload_and_position(server: FakeServer) -> None:
    async with Client(server.url) as client, client.subscribe("room") as records:
        assert await client.publish("room", "hello") == 1
        record = await anext(records)
        assert (record.topic, record.payload, record.position) == (b"room", b"hello", Position(7, 1))
        assert record.gap is None


async def test_a_lost_connection_resumes_behind_the_last_record(server: FakeServer) -> None:
    async with Client(server.url, options=QUICK) as client, client.subscribe("room") as records:
        server.publish(b"room", b"1")
        assert (await anext(records)).payload == b"1"
        server.cut()
        server.publish(b"room", b"2")
        server.publish(b"room", b"3")
        got = [await anext(records), await anext(records)]
        assert [r.payload for r in got] == [b"2", b"3"]
        assert all(r.gap is None for r in got)
        assert [b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"7-1"] in server.commands


async def test_records_of_an_outage_before_the_first_record_arrive_too(server: FakeServer) -> None:
    async with Client(server.url, options=QUICK) as client, client.subscribe("room") as records:
        server.cut()
        server.publish(b"room", b"1")
        assert (await anext(records)).payload == b"1"


async def test_an_unknown_epoch_is_told_as_a_gap(server: FakeServer) -> None:
    gaps: list[Gap] = []
    async with (
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", on_gap=gaps.append) as records,
    ):
        server.publish(b"room", b"1")
        await anext(records)
        server.epoch, server.log = 8, type(server.log)(list)
        server.cut()
        await server.seen(b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"7-1")
        server.publish(b"room", b"2")
        record = await anext(records)
        assert record.position == Position(8, 1)
        assert record.gap == Gap(b"room", None, None) == gaps[0]


async def test_a_room_that_began_anew_during_an_outage_is_read_from_its_beginning(
    server: FakeServer,
) -> None:
    gaps: list[Gap] = []
    async with (
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", on_gap=gaps.append) as records,
    ):
        server.publish(b"room", b"1")
        await anext(records)
        server.cut()
        server.epoch, server.log = 8, type(server.log)(list)
        server.publish(b"room", b"new 1")
        server.publish(b"room", b"new 2")
        await server.seen(b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"8-0")
        server.publish(b"room", b"new 3")
        got = [await anext(records) for _ in range(3)]
        assert [r.payload for r in got] == [b"new 1", b"new 2", b"new 3"]
        assert [r.position for r in got] == [(8, 1), (8, 2), (8, 3)]
        assert gaps == [Gap(b"room", None, None)] == [got[0].gap]
        assert records.positions == {b"room": Position(8, 3)}


async def test_a_resume_from_another_life_of_the_room_says_so_and_starts_now(server: FakeServer) -> None:
    gaps: list[Gap] = []
    server.publish(b"room", b"1")
    async with (
        Client(server.url) as client,
        client.subscribe("room", resume="6-5", on_gap=gaps.append) as records,
    ):
        assert gaps == [Gap(b"room", None, None)]
        server.publish(b"room", b"2")
        assert (await anext(records)).payload == b"2"


async def test_records_that_history_has_lost_are_a_gap_and_the_rest_comes_over_further_reconnects(
    server: FakeServer,
) -> None:
    gaps: list[Gap] = []
    async with (
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", on_gap=gaps.append) as records,
    ):
        server.publish(b"room", b"1")
        await anext(records)
        server.cut()
        for n in range(2, 6):
            server.publish(b"room", b"%d" % n)
        server.forgotten = 3
        await server.seen(b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"7-1")
        record = await anext(records)
        assert (record.payload, record.gap) == (b"4", Gap(b"room", Position(7, 2), None)) and gaps == [
            record.gap
        ]
        server.cut()
        assert (await anext(records)).payload == b"5"


async def test_a_position_of_the_present_epoch_that_is_not_recovered_brings_no_record_twice(
    server: FakeServer,
) -> None:
    gaps: list[Gap] = []
    async with (
        asyncio.timeout(30),
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", on_gap=gaps.append) as records,
    ):
        for payload in (b"1", b"2", b"3"):
            server.publish(b"room", payload)
            await anext(records)
        server.unrecovered.add(b"7-3")
        server.cut()
        await server.seen(b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"7-3")
        server.publish(b"room", b"4")
        record = await anext(records)
        assert (record.payload, record.position, record.gap) == (b"4", (7, 4), Gap(b"room", None, None))
        assert gaps == [record.gap] and records.positions == {b"room": Position(7, 4)}


async def test_the_end_and_the_return_of_the_connection_are_told(server: FakeServer) -> None:
    told: list[object] = []
    async with (
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", on_connection=told.append) as records,
    ):
        server.cut()
        await server.seen(b"HUBSUB", b"SUBSCRIBE", b"room", b"FROM", b"7-0")
        server.publish(b"room", b"1")
        await anext(records)
        assert [type(error) for error in told] == [NotConnectedError, type(None)]


async def test_a_gap_that_the_server_tells_reaches_the_next_record(server: FakeServer) -> None:
    async with Client(server.url) as client, client.subscribe("room") as records:
        server.push(b"gap", b"room", b"7-2", b"7-5")
        server.publish(b"room", b"6")
        assert (await anext(records)).gap == Gap(b"room", Position(7, 2), Position(7, 5))


@pytest.mark.parametrize(
    ("first", "last", "gap"),
    [(b"7-2", b"7-0", Gap(b"room", Position(7, 2), None)), (b"0-0", b"0-0", Gap(b"room", None, None))],
)
async def test_an_end_of_a_gap_that_the_server_does_not_know_is_none(
    server: FakeServer, first: bytes, last: bytes, gap: Gap
) -> None:
    async with Client(server.url) as client, client.subscribe("room") as records:
        server.push(b"gap", b"room", first, last)
        server.publish(b"room", b"6")
        assert (await anext(records)).gap == gap


async def test_a_pattern_that_lost_its_connection_tells_a_gap(server: FakeServer) -> None:
    gaps: list[Gap] = []
    async with (
        Client(server.url, options=QUICK) as client,
        client.subscribe(patterns=["ro*"], on_gap=gaps.append),
    ):
        server.cut()
        await server.seen(b"PSUBSCRIBE", b"ro*", count=2)
        assert gaps == [Gap(b"ro*", None, None)]


async def test_last_starts_with_history_and_resume_behind_a_position(server: FakeServer) -> None:
    for payload in (b"1", b"2", b"3"):
        server.publish(b"room", payload)
    async with Client(server.url) as client:
        async with client.subscribe("room", last=2) as records:
            assert [(await anext(records)).payload for _ in range(2)] == [b"2", b"3"]
        async with client.subscribe("room", resume="7-1") as records:
            assert [(await anext(records)).payload for _ in range(2)] == [b"2", b"3"]


async def test_a_consumer_that_does_not_read_stops_the_reading(server: FakeServer) -> None:
    async with Client(server.url) as client, client.subscribe("room") as records:
        payload = b"x" * 10_000
        for _ in range(QUEUE_RECORDS_MAX * 4):
            server.publish(b"room", payload)
        for seq in range(1, QUEUE_RECORDS_MAX * 4 + 1):
            record = await anext(records)
            assert record.position == Position(7, seq)
            assert len(records._queue) < QUEUE_RECORDS_MAX * 2


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


async def test_a_silent_server_is_given_up_and_the_subscription_comes_back(server: FakeServer) -> None:
    options = Options(timeout_s=0.05, ping_s=0.01, backoff_s=0.001, backoff_s_max=0.01)
    async with Client(server.url, options=options) as client, client.subscribe("room") as records:
        server.silent.add(b"PING")
        await server.seen(b"HUBSUB", b"POSITIONS", b"ON", count=2)
        server.silent.clear()
        await server.seen(b"PING", count=3)
        server.publish(b"room", b"after")
        assert (await anext(records)).payload == b"after"


async def test_publishes_of_a_batch_keep_their_order(server: FakeServer) -> None:
    async with Client(server.url) as client:
        assert await client.publish_many([("room", str(i)) for i in range(3_000)]) == [0] * 3_000
    assert server.log[b"room"] == [str(i).encode() for i in range(3_000)]


async def test_what_of_a_batch_was_answered_before_a_failure_is_told(server: FakeServer) -> None:
    told: list[int] = []
    real, answers = server.publish, asyncio.Event()

    def publish(topic: bytes, payload: bytes) -> int:
        if payload == b"4":
            server.silent.add(b"PUBLISH")  # From the next one on.
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


async def test_an_outage_before_the_first_record_loses_none_where_the_start_is_last(
    server: FakeServer,
) -> None:
    for payload in (b"1", b"2", b"3"):
        server.publish(b"room", payload)
    async with Client(server.url, options=QUICK) as client, client.subscribe("room", last=0) as records:
        server.cut()
        for payload in (b"4", b"5"):
            server.publish(b"room", payload)
        assert [(await anext(records)).payload for _ in range(2)] == [b"4", b"5"]


async def test_the_positions_to_keep_are_of_records_that_were_taken(server: FakeServer) -> None:
    async with Client(server.url) as client, client.subscribe("room") as records:
        for payload in (b"1", b"2", b"3"):
            server.publish(b"room", payload)
        await anext(records)
        await client.ping()
        while len(records._queue) < 2:
            await client.ping()
        kept = records.positions
    async with Client(server.url) as client, client.subscribe("room", resume=kept) as records:
        assert [(await anext(records)).payload for _ in range(2)] == [b"2", b"3"]


@pytest.mark.parametrize("told", ["by the server", "after a loss"])
async def test_an_error_in_on_gap_ends_the_subscription_with_it(server: FakeServer, told: str) -> None:
    def on_gap(gap: Gap) -> None:
        raise ZeroDivisionError(gap.topic)

    async with (
        asyncio.timeout(30),
        Client(server.url, options=QUICK) as client,
        client.subscribe("room", patterns=["r*"], on_gap=on_gap) as records,
    ):
        if told == "by the server":
            server.push(b"gap", b"room", b"7-2", b"7-5")
        else:
            server.cut()
        with pytest.raises(ZeroDivisionError):
            await anext(records)


async def test_a_push_of_a_strange_form_costs_the_connection_and_no_record(server: FakeServer) -> None:
    async with (
        asyncio.timeout(30),
        Client(server.url, options=QUICK) as client,
        client.subscribe("room") as records,
    ):
        server.push(b"message", b"room", b"x", b"no position")
        await server.seen(b"HUBSUB", b"POSITIONS", b"ON", count=2)
        server.publish(b"room", b"1")
        assert (await anext(records)).payload == b"1"


async def test_a_consumer_slower_than_the_answer_to_a_ping_keeps_its_connection(server: FakeServer) -> None:
    options = Options(timeout_s=0.05, ping_s=0.01, backoff_s=0.001, backoff_s_max=0.01)
    async with Client(server.url, options=options) as client, client.subscribe("room") as records:
        server.silent.add(b"PING")  # Its answer stands behind the records.
        await server.seen(b"PING")
        for i in range(QUEUE_RECORDS_MAX * 2):
            server.publish(b"room", b"%d" % i)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await server.seen(b"HUBSUB", b"POSITIONS", b"ON", count=2)
        server.silent.clear()
        assert [int((await anext(records)).payload) for _ in range(1_000)] == list(range(1_000))


async def test_a_subscription_that_is_closed_as_its_connection_breaks_ends(server: FakeServer) -> None:
    async with asyncio.timeout(30), Client(server.url, options=QUICK) as client:
        async with client.subscribe("room") as records:
            server.cut()
            await records._closed.wait()


async def test_a_subscription_that_is_closed_as_it_gives_up_a_silent_server_ends(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, real = asyncio.Event(), Connection.close

    async def close(self: Connection, why: str = "the connection was closed") -> None:
        closing.set()
        await real(self, why)

    options = Options(timeout_s=0.05, ping_s=0.01, backoff_s=0.001, backoff_s_max=0.01)
    async with asyncio.timeout(30), Client(server.url, options=options) as client:
        async with client.subscribe("room"):
            monkeypatch.setattr(Connection, "close", close)
            server.silent.add(b"PING")
            await closing.wait()


async def test_a_closed_subscription_is_forgotten(server: FakeServer) -> None:
    async with Client(server.url) as client:
        for _ in range(10):
            async with client.subscribe("room"):
                assert len(client._subscriptions) == 1
        assert not client._subscriptions
        client.subscribe("room")
        assert not client._subscriptions


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
