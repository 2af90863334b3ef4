"""Subscriptions of the asyncio client, against a fake HubSub whose connections can be cut."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hubsub.client import Client, Gap, Options, Position
from hubsub.client.connection import Connection
from hubsub.client.subscription import QUEUE_RECORDS_MAX
from hubsub.errors import NotConnectedError

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


async def test_a_silent_server_is_given_up_and_the_subscription_comes_back(server: FakeServer) -> None:
    options = Options(timeout_s=0.05, ping_s=0.01, backoff_s=0.001, backoff_s_max=0.01)
    async with Client(server.url, options=options) as client, client.subscribe("room") as records:
        server.silent.add(b"PING")
        await server.seen(b"HUBSUB", b"POSITIONS", b"ON", count=2)
        server.silent.clear()
        await server.seen(b"PING", count=3)
        server.publish(b"room", b"after")
        assert (await anext(records)).payload == b"after"


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
        server.silent.add(b"PING")  # As if the reply were queued after the records.
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
