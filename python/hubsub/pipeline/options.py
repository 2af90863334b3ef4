"""Options of the Spark source and sink: a table each, parsed once into a frozen value.

Spark passes options as text; the case of names does not matter. The rest of this package only uses
`SourceOptions` or `SinkOptions`. An unknown name is an error with the nearest known one; so are values out of
range and contradictory options.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import urlsplit

from hubsub.columns import COLUMNS
from hubsub.errors import OptionError, without_secrets
from hubsub.names import bytes_of

SERVER_DEFAULT = "127.0.0.1:3220"

CAUGHT_UP = "caught_up"
"""An additional column that the reader adds on request: whether the record's batch, or one before it, reaches
the end that the log had when the query started.
"""

Start = Literal["earliest", "latest"] | Mapping[str, int]
"""Start or end of a read: a word for all hubs, or an offset by hub id or name (-2 earliest, -1 latest)."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Servers and how to access them. Sent to executors with each task."""

    servers: tuple[str, ...] = (SERVER_DEFAULT,)
    """`HOST:PORT`, asked in this order."""
    tls: bool = False
    token: str | None = None
    tls_ca: str | None = None
    """File with the trusted certificates; None: those of the system."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    timeout_s: float = 60.0
    """A connection that is silent for this long counts as broken."""
    retry_s: float = 60.0
    """How long retries go on without any progress before the error is final."""

    def __repr__(self) -> str:
        return f"Access(servers={','.join(self.servers)}, tls={self.tls})"  # Hides the token.


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a read; field names are the options' in snake case."""

    access: Access = Access()
    subscribe: tuple[str, ...] = ()
    """Rooms by name, as names.py writes them."""
    subscribe_pattern: str | None = None
    topic_filter: tuple[str, ...] = ()
    starting_offsets: Start | None = None
    """None: earliest for a batch, latest for a stream."""
    ending_offsets: Start | None = None
    starting_timestamp_us: int | None = None
    ending_timestamp_us: int | None = None
    max_rows_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    compression: Literal["none", "lz4"] = "none"
    query_name: str | None = None
    """Name under which the node shows a stream's progress; None: one that the checkpoint stores."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parses Spark's options.

        >>> SourceOptions.parse({"subscribe": "lobby, chat", "MaxRowsPerBatch": "1000"}).subscribe
        ('lobby', 'chat')

        Raises:
            OptionError: the first error.
        """
        given = _parsed(options, _BY_NAME)
        for one, other in _CONFLICTS:
            if {one, other} <= given.keys():
                raise OptionError(
                    f"{_OF_FIELD[one]} and {_OF_FIELD[other]} cannot be given together", hint="leave one out"
                )
        access = _access(given)
        return cls(access=access, **given)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    access: Access = Access()
    topic: bytes | None = None
    """Topic of all rows, which then have no column for it."""
    query: str | None = None
    """Name under which batches are numbered; None: a stream takes its checkpoint's, a batch a new one."""
    batch: int | None = None
    """Number of a batch write; None: 0."""
    checkpoint: str | None = None
    """Where Spark stores a stream's progress; Spark passes this option unchanged."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parses Spark's options.

        >>> SinkOptions.parse({"topic": "lobby", "Query": "alerts"}).topic
        b'lobby'

        Raises:
            OptionError: the first error.
        """
        given = _parsed(options, _SINK_BY_NAME)
        name = given.pop("query_name", None)
        given.setdefault("query", name)
        if given.get("batch") is not None and given["query"] is None:
            raise OptionError("option batch needs option query", hint="a batch is one of a query")
        return cls(access=_access(given), **given)


def _parsed(options: Mapping[str, str], table: Mapping[str, "_Option"]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, text in options.items():
        option = table.get(name.lower())
        if option is None:
            raise OptionError("unknown option", name, _nearest(name, table))
        try:
            given[option.field] = option.parse(text.strip())
        except _Bad as bad:
            shown = "***" if option.secret else without_secrets(text)
            raise OptionError(f"option {option.name} {bad.reason}", repr(shown), bad.hint) from None
    return given


def canonical(columns: Collection[str]) -> tuple[str, ...]:
    """Column names in the node's order."""
    return tuple(name for name in COLUMNS if name in columns)


# -- values --


class _Bad(Exception):
    def __init__(self, reason: str, hint: str | None = None) -> None:
        self.reason = reason
        self.hint = hint


def _count(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise _Bad("is no whole number") from None
        if not low <= value <= high:
            raise _Bad("is out of range", f"from {low}" + (f" to {high}" if high < 2**63 - 1 else " on"))
        return value

    return parse


_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def _size(text: str) -> int:
    """Bytes: `1048576`, `64m`, `64MiB`; units are powers of 1024, as in Spark."""
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise _Bad("is no size", "a number of bytes above 0, or such as 64MiB")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise _Bad("is no number of seconds above 0")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Bad("is neither true nor false")
    return text.lower() == "true"


def _text(text: str) -> str:
    if not text:
        raise _Bad("is empty", "leave it out")
    return text


def _topic(text: str) -> bytes:
    return bytes_of(_text(text))


def _query(text: str) -> str:
    if not 0 < len(text.encode()) <= 200:
        raise _Bad("is empty or longer than 200 bytes")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise _Bad("names nothing", "one name or more, with commas between them; a comma in a name is %2C")
    return names


def _columns(text: str) -> tuple[str, ...]:
    names = _names(text)
    for name in names:
        if name not in (*COLUMNS, CAUGHT_UP):
            close = get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}"
            raise _Bad(f"names no column of records ({name})", hint)
    return names


def _compression(text: str) -> str:
    if text.lower() not in ("none", "lz4"):
        raise _Bad("is not known", "none or lz4")
    return text.lower()


def _start(text: str) -> Start:
    """`earliest`, `latest`, or JSON: `{"0": 17, "chat-1": -2}`, or a checkpoint's whole offset."""
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("hubs"), dict):
        value = value["hubs"]
    if not isinstance(value, dict) or not all(type(n) is int and n >= -2 for n in value.values()):
        raise _Bad("cannot be read", 'earliest, latest, or offsets by hub as JSON: {"0": 17, "1": -2}')
    return {str(hub): offset for hub, offset in value.items()}


def _timestamp(text: str) -> int:
    """Microseconds of unix time, from milliseconds or ISO 8601; without a zone it is UTC."""
    if re.fullmatch(r"\d+", text):
        return int(text) * 1_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _Bad("is no time", "milliseconds since 1970, or such as 2026-11-21T09:30:00Z") from None
    return timestamp_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def timestamp_us(moment: datetime) -> int:
    """Microseconds of unix time, exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _servers(text: str) -> tuple[tuple[str, bool | None], ...]:
    """Each server with whether its URL asks for TLS; None: it is no URL."""
    return tuple(_server(name) for name in _names(text))


def _server(text: str) -> tuple[str, bool | None]:
    url = urlsplit(text if "://" in text else f"//{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    schemes = {"": None, "http": False, "https": True}
    if not url.hostname or port is None or url.scheme not in schemes or url.path.strip("/") or url.query:
        raise _Bad("holds what is no server", "HOST:PORT of its HTTP listener, or http(s)://HOST:PORT")
    if url.username is not None:
        raise _Bad("holds a user", "option token says who asks")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{port}", schemes[url.scheme]


# -- the table --


@dataclass(frozen=True)
class _Option:
    name: str
    field: str
    parse: Callable[[str], Any]
    secret: bool = False


_OPTIONS = (
    _Option("servers", "servers", _servers),
    _Option("subscribe", "subscribe", _names),
    _Option("subscribePattern", "subscribe_pattern", _text),
    _Option("topicFilter", "topic_filter", _names),
    _Option("startingOffsets", "starting_offsets", _start),
    _Option("endingOffsets", "ending_offsets", _start),
    _Option("startingTimestamp", "starting_timestamp_us", _timestamp),
    _Option("endingTimestamp", "ending_timestamp_us", _timestamp),
    _Option("maxRowsPerBatch", "max_rows_per_batch", _count(1)),
    _Option("maxBytesPerBatch", "max_bytes_per_batch", _size),
    _Option("minPartitions", "min_partitions", _count(1, 100_000)),
    _Option("failOnDataLoss", "fail_on_data_loss", _boolean),
    _Option("columns", "columns", _columns),
    _Option("compression", "compression", _compression),
    _Option("queryName", "query_name", _text),
    _Option("token", "token", _text, secret=True),
    _Option("tls.ca", "tls_ca", _text),
    _Option("tls.cert", "tls_cert", _text),
    _Option("tls.key", "tls_key", _text),
    _Option("tls.verify", "tls_verify", _boolean),
    _Option("timeoutSeconds", "timeout_s", _seconds),
    _Option("retrySeconds", "retry_s", _seconds),
)
ACCESS = (
    "servers",
    "token",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "tls.verify",
    "timeoutSeconds",
    "retrySeconds",
)
_SINK_OPTIONS = (
    _Option("topic", "topic", _topic),
    _Option("query", "query", _query),
    _Option("queryName", "query_name", _query),
    _Option("batch", "batch", _count(0)),
    _Option("checkpointLocation", "checkpoint", _text),
    *(option for option in _OPTIONS if option.name in ACCESS),
)
_SINK_BY_NAME = {option.name.lower(): option for option in _SINK_OPTIONS}
_BY_NAME = {option.name.lower(): option for option in _OPTIONS}
_OF_FIELD = {option.field: option.name for option in _OPTIONS}
NAMES = tuple(option.name for option in _OPTIONS)
"""All options of the source, in the order of the documentation."""
SINK_NAMES = tuple(option.name for option in _SINK_OPTIONS)
"""All options of the sink, in the order of the documentation."""

_CONFLICTS = (
    ("subscribe", "subscribe_pattern"),
    ("starting_offsets", "starting_timestamp_us"),
    ("ending_offsets", "ending_timestamp_us"),
)


def _nearest(name: str, table: Mapping[str, _Option]) -> str:
    close = get_close_matches(name.lower(), table, n=1, cutoff=0.5)
    names = ", ".join(option.name for option in table.values())
    return f"did you mean {table[close[0]].name}?" if close else f"there are {names}"


def _access(given: dict[str, Any]) -> Access:
    """Moves the options of access from `given` into an `Access`."""
    fields = {k: given.pop(k) for k in [*given] if k in Access.__dataclass_fields__ and k != "servers"}
    servers = given.pop("servers", ((SERVER_DEFAULT, None),))
    asked = {tls for _, tls in servers if tls is not None}
    if len(asked) > 1:
        raise OptionError(
            "servers are http and https at once", hint="all of a cluster's are one or the other"
        )
    tls_options = [_OF_FIELD[field] for field in fields if field.startswith("tls_")]
    tls = asked.pop() if asked else bool(tls_options)
    if tls_options and not tls:
        raise OptionError(
            f"{tls_options[0]} is for https, and servers are http", hint="write https://HOST:PORT"
        )
    if ("tls_key" in fields) and "tls_cert" not in fields:
        raise OptionError("tls.key needs tls.cert")
    return Access(servers=tuple(dict.fromkeys(name for name, _ in servers)), tls=tls, **fields)
