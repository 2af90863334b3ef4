"""Record streams while the network, the node or the log fails; without Spark."""

import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from hubsub.columns import COLUMNS
from hubsub.errors import (
    HubSubError,
    NotConnectedError,
    OffsetsLostError,
    OffsetUnknownError,
    OtherLogError,
    PipelineError,
    QuarantinedError,
    StreamBrokenError,
    TooManyStreamsError,
)
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.packing import Range
from hubsub.pipeline.reading import Part, Reading
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import Wire
from pipeline.fake_log import IDENTITY, FakeLog, rows


@pytest.fixture
def log() -> Iterator[FakeLog]:
    with FakeLog({1: rows(1, 1, 5_001, ("lobby", "chat:a"))}) as fake:
        yield fake


def batches(
    fake: FakeLog, first: int = 1, end: int = 5_001, *, columns: tuple[str, ...] = COLUMNS, **options: str
) -> list[pa.RecordBatch]:
    parsed = SourceOptions.parse({"servers": fake.address, "retrySeconds": "5", **options})
    part = Part(IDENTITY, (Range(hub=1, first=first, end=end, bytes=1, servers=(fake.address,)),))
    return list(Reading(parsed, columns, Selection.of(parsed)).read(part))


def offsets(found: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def test_all_records_come_once_in_order(log: FakeLog) -> None:
    found = batches(log)
    assert offsets(found) == list(range(1, 5_001))
    assert pa.Table.from_batches(found).equals(log.tables[1])


def test_a_range_is_read_and_nothing_beside_it(log: FakeLog) -> None:
    assert offsets(batches(log, 17, 4_003)) == list(range(17, 4_003))


def test_a_broken_connection_gives_exact_rows(log: FakeLog) -> None:
    log.faults.break_after = [0, 2, 0, 1]
    assert offsets(batches(log)) == list(range(1, 5_001))
    assert [params["from"] for params in log.streams()] == [["1"], ["1"], ["2001"], ["2001"], ["3001"]]


def test_a_stream_without_arrows_mark_is_not_taken_for_whole(log: FakeLog) -> None:
    log.faults.end_short = 1
    assert offsets(batches(log)) == list(range(1, 5_001))
    assert len(log.streams()) == 2


def test_a_stream_that_always_breaks_is_an_error_that_says_where(log: FakeLog) -> None:
    log.faults.break_after = [1] + [0] * 1_000
    with pytest.raises(StreamBrokenError, match=r"not read: .*: hub 1, offsets 1001 to 5000"):
        batches(log, retrySeconds="0.3")


def test_columns_come_as_asked_and_the_offset_only_on_the_way(log: FakeLog) -> None:
    log.faults.break_after = [1]
    found = batches(log, columns=("payload", "room"))
    assert found[0].schema.names == ["payload", "room"]
    assert sum(batch.num_rows for batch in found) == 5_000
    assert log.streams()[0]["columns"] == ["offset,room,payload"]


def test_other_types_are_cast_to_sparks(log: FakeLog) -> None:
    table = log.tables[1]
    at = table.schema.get_field_index("room")
    log.tables[1] = table.set_column(at, "room", table.column("room").dictionary_encode())
    log.select = lambda hub, params: log.tables[hub].select(params["columns"][0].split(","))  # type: ignore[method-assign]
    assert pa.Table.from_batches(batches(log)).equals(table)


def test_more_rooms_than_a_request_holds_are_filtered_here(log: FakeLog) -> None:
    many = ",".join(["lobby", *(f"room-{n}" for n in range(5_000))])
    found = batches(log, subscribe=many, columns=("offset",))
    assert offsets(found) == list(range(2, 5_001, 2)) and found[0].schema.names == ["offset"]
    assert "room" not in log.streams()[0]


def test_offsets_lost_name_the_range(log: FakeLog) -> None:
    log.faults.lost = {1: (1, 501)}
    with pytest.raises(OffsetsLostError) as raised:
        batches(log)
    assert (raised.value.hub, raised.value.first, raised.value.end) == ("chat-1", 1, 501)


def test_offsets_lost_under_the_read_are_told_too(log: FakeLog) -> None:
    log.faults.lost = {1: (2_001, 3_001)}
    with pytest.raises(OffsetsLostError) as raised:
        batches(log)
    assert (raised.value.first, raised.value.end) == (2_001, 3_001)


def test_a_read_that_may_lose_goes_on_behind_the_hole(log: FakeLog) -> None:
    log.faults.lost = {1: (2_001, 3_001)}
    expected = [*range(1, 2_001), *range(3_001, 5_001)]
    assert offsets(batches(log, failOnDataLoss="false")) == expected


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (503, "quarantined", QuarantinedError),
        (409, "other_log", OtherLogError),
        (416, "offset_unknown", OffsetUnknownError),
        (418, "something_new", HubSubError),
    ],
)
def test_an_answer_that_says_no_for_good_is_raised_at_once(
    log: FakeLog, status: int, code: str, error: type[HubSubError]
) -> None:
    log.faults.refuse = [(status, code)]
    with pytest.raises(error, match=code):
        batches(log)
    assert len(log.streams()) == 1


def test_an_answer_that_says_later_is_asked_again(log: FakeLog) -> None:
    log.faults.refuse = [(503, "too_many_streams"), (503, "stopping"), (502, "something_new")]
    assert offsets(batches(log)) == list(range(1, 5_001))
    log.faults.refuse = [(503, "too_many_streams")] * 1_000
    with pytest.raises(TooManyStreamsError):
        batches(log, retrySeconds="0.2")


def test_another_log_behind_the_same_address_is_refused(log: FakeLog) -> None:
    log.log = "ffff"
    with pytest.raises(OtherLogError):
        batches(log)


def test_offsets_that_were_not_asked_for_are_never_taken(log: FakeLog) -> None:
    log.select = lambda hub, params: log.tables[hub]  # type: ignore[method-assign]
    with pytest.raises(PipelineError, match="1 to 1000, asked for were 2000"):
        batches(log, 2_000)


def test_the_next_server_is_asked_when_one_is_down(log: FakeLog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    options = SourceOptions.parse({"servers": f"{dead},{log.address}"})
    with Wire(options.access) as wire:
        assert wire.listing().hubs[1].end == 5_001
    part = Part(IDENTITY, (Range(hub=1, first=1, end=11, bytes=1, servers=(dead,)),))
    assert offsets(list(Reading(options, COLUMNS, Selection()).read(part))) == list(range(1, 11))


def test_nobody_there_is_an_error_that_names_who_was_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    options = SourceOptions.parse({"servers": dead, "retrySeconds": "0.2"})
    with Wire(options.access) as wire, pytest.raises(NotConnectedError, match=dead):
        wire.listing()


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = SourceOptions.parse({"servers": address, "timeoutSeconds": "0.1", "retrySeconds": "0.2"})
        with Wire(options.access) as wire, pytest.raises(NotConnectedError, match="timed out"):
            wire.listing()


@pytest.mark.parametrize(("scheme", "hint"), [("https", "write http://"), ("http", "write https://")])
def test_tls_against_a_plain_port_is_told_clearly(scheme: str, hint: str) -> None:
    """Also the other way round: a TLS listener closes on bytes that are no handshake."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    if scheme == "https":
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        options = SourceOptions.parse({"servers": address, "retrySeconds": "0.2"})
        with Wire(options.access) as wire, pytest.raises(NotConnectedError) as raised:
            wire.listing()
        assert hint in str(raised.value)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_the_token_goes_with_each_request(log: FakeLog) -> None:
    batches(log, token="t0p")
    assert all(headers["authorization"] == "Bearer t0p" for headers in log.headers)


def test_one_connection_serves_many_requests(log: FakeLog) -> None:
    """A task that reads 64 hubs does not open 64 connections."""
    options = SourceOptions.parse({"servers": log.address})
    with Wire(options.access) as wire:
        for _ in range(5):
            wire.listing()
            wire.report("q", {1: 5}, 2.0)
    assert log.reports[-1] == ("q", {"offsets": {"1": 5}, "rows_per_second": 2.0})
    parts = Part(IDENTITY, tuple(Range(hub=1, first=n, end=n + 10, bytes=1) for n in range(1, 101, 10)))
    assert offsets(list(Reading(options, COLUMNS, Selection()).read(parts))) == list(range(1, 101))
    assert len(log.connections) == 2
