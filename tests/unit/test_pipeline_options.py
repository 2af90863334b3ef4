"""Options of the Spark source."""

import pytest

from hubsub.columns import COLUMNS
from hubsub.errors import OptionError
from hubsub.pipeline.options import NAMES, SourceOptions


def test_what_is_not_given_has_a_default() -> None:
    options = SourceOptions.parse({})
    assert options.columns == COLUMNS and options.fail_on_data_loss
    assert options.access.servers == ("127.0.0.1:3220",) and not options.access.tls


def test_every_option_is_read() -> None:
    given = {
        "servers": "https://a:1, https://b:2",
        "subscribe": "lobby,a%2Cb",
        "topicFilter": "devices/+/state",
        "startingOffsets": '{"1": 5, "chat-2": -2}',
        "endingTimestamp": "2023-11-14T22:13:20.000001Z",
        "maxRowsPerBatch": "10",
        "maxBytesPerBatch": "64MiB",
        "minPartitions": "3",
        "failOnDataLoss": "False",
        "columns": "payload, room",
        "compression": "LZ4",
        "queryName": "q",
        "token": "secret",
        "tls.ca": "ca.pem",
        "tls.cert": "c.pem",
        "tls.key": "k.pem",
        "tls.verify": "true",
        "timeoutSeconds": "1.5",
        "retrySeconds": "2",
    }
    options = SourceOptions.parse(given)
    others = {"subscribePattern", "startingTimestamp", "endingOffsets"}  # Each contradicts one that is set.
    assert set(given) | others == set(NAMES)
    assert options.access.servers == ("a:1", "b:2") and options.access.tls
    assert options.subscribe == ("lobby", "a%2Cb") and options.topic_filter == ("devices/+/state",)
    assert options.starting_offsets == {"1": 5, "chat-2": -2}
    assert options.ending_timestamp_us == 1_700_000_000_000_001
    assert options.max_rows_per_batch == 10 and options.max_bytes_per_batch == 64 << 20
    assert not options.fail_on_data_loss and options.columns == ("payload", "room")
    assert options.compression == "lz4" and options.access.retry_s == 2.0


def test_names_count_in_any_case() -> None:
    assert SourceOptions.parse({"MAXROWSPERBATCH": "7"}).max_rows_per_batch == 7


def test_a_time_is_milliseconds_or_iso() -> None:
    for text in ("1700000000000", "2023-11-14T22:13:20", "2023-11-15T00:13:20+02:00"):
        assert SourceOptions.parse({"startingTimestamp": text}).starting_timestamp_us == 1_700_000_000_000_000


def test_a_checkpoints_offset_can_be_given_as_it_is() -> None:
    text = '{"log": "aa", "query": "q", "hubs": {"3": 17}}'
    assert SourceOptions.parse({"startingOffsets": text}).starting_offsets == {"3": 17}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscrbe": "a"}, "did you mean subscribe?"),
        ({"maxRowPerBatch": "1"}, "did you mean maxRowsPerBatch?"),
        ({"xyzzy": "1"}, "there are servers, subscribe"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch is no whole number: 'many'"),
        ({"maxRowsPerBatch": "0"}, "from 1 on"),
        ({"maxBytesPerBatch": "0"}, "is no size"),
        ({"failOnDataLoss": "yes"}, "neither true nor false"),
        ({"columns": "room,paylaod"}, "did you mean payload?"),
        ({"compression": "zstd"}, "none or lz4"),
        ({"startingOffsets": "newest"}, "earliest, latest, or"),
        ({"startingOffsets": '{"1": "x"}'}, "earliest, latest, or"),
        ({"startingTimestamp": "tomorrow"}, "is no time"),
        ({"servers": "localhost"}, "HOST:PORT"),
        ({"servers": "ftp://a:1"}, "HOST:PORT"),
        ({"servers": "http://a:1,https://b:1"}, "http and https at once"),
        ({"servers": "http://a:1", "tls.ca": "x"}, "write https://"),
        ({"tls.key": "x"}, "tls.key needs tls.cert"),
        ({"subscribe": "a", "subscribePattern": "b*"}, "cannot be given together"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "cannot be given together"),
        ({"subscribe": " , "}, "names nothing"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        SourceOptions.parse(given)
    assert said in str(raised.value)


def test_secrets_stand_in_no_message() -> None:
    with pytest.raises(OptionError) as raised:
        SourceOptions.parse({"servers": "http://me:hush@a:1"})
    assert "hush" not in str(raised.value)
    assert "hush" not in repr(SourceOptions.parse({"token": "hush"}))
