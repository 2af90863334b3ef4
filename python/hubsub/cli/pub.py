"""`hubsub pub`: publishes one message, or the lines of a file in order.

If it ends before the last line, it prints how many records were acknowledged and how to continue after them.
"""

import asyncio
import base64
import binascii
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from hubsub.cli.common import Server, new_app, redis_url, say
from hubsub.errors import ClientError
from hubsub.names import bytes_of

BATCH = 512

app = new_app("Publishes records.")


@app.command()
def pub(
    topic: Annotated[str | None, typer.Argument(help="The topic.", show_default=False)] = None,
    message: Annotated[str | None, typer.Argument(help="The payload; - reads it from stdin.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="JSON lines, also gzipped, - for stdin: `topic` with `payload` (text, or JSON) or `payload_base64`. "
            "A line without them goes whole to the topic in its `room`.",
        ),
    ] = None,
    skip: Annotated[
        int, typer.Option("--skip", metavar="N", help="Leaves out the first N records of FILE.", min=0)
    ] = 0,
    server: Server = None,
) -> None:
    """Publishes TOPIC MESSAGE and prints how many subscribers get it, or publishes each line of --from FILE."""
    if source is not None and topic is None:
        asyncio.run(_publish_lines(redis_url(server), source, skip))
    elif source is None and topic is not None and message is not None:
        if skip:
            raise typer.BadParameter("--skip goes with --from FILE")
        payload = _stdin().read() if message == "-" else message.encode("utf-8", "surrogateescape")
        print(asyncio.run(_publish(redis_url(server), bytes_of(topic), payload)))
    else:
        raise typer.BadParameter("give TOPIC and MESSAGE, or --from FILE")


async def _publish(url: str, topic: bytes, payload: bytes) -> int:
    from hubsub.client import Client

    async with Client(url) as client:
        return await client.publish(topic, payload)


async def _publish_lines(url: str, source: Path, skip: int) -> None:
    from hubsub.client import Client

    sent = acknowledged = receivers = 0

    def on_answer(count: int) -> None:
        nonlocal acknowledged, receivers
        acknowledged += 1
        receivers += count

    try:
        async with Client(url) as client:
            records = islice(read(source), skip, None)
            while batch := list(islice(records, BATCH)):
                sent += len(batch)
                await client.publish_many(batch, on_answer=on_answer)
    except BaseException:  # Also a signal.
        if sent:
            _say_how_to_go_on(skip + acknowledged, sent - acknowledged)
        raise
    say(f"published {acknowledged} records, {receivers} deliveries")


def _say_how_to_go_on(acknowledged: int, unknown: int) -> None:
    behind = f", the next {unknown} may be there or not" if unknown else ""
    say(
        f"the first {acknowledged} records are acknowledged{behind}; --skip {acknowledged} goes on behind them"
    )


def _stdin() -> Any:
    if sys.stdin is None:
        raise ClientError("standard input is closed", None, "give a FILE or a MESSAGE")
    return sys.stdin.buffer


def read(source: Path) -> Iterator[tuple[bytes, bytes]]:
    """`(topic, payload)` of each line.

    Raises:
        ClientError: the file cannot be read, or a line is no record; the message has the line number.
    """
    try:
        stream: Any = nullcontext(_stdin()) if str(source) == "-" else source.open("rb")
        with stream as raw:
            lines = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield record_of(line, number)
    except (OSError, EOFError, zlib.error) as error:
        raise ClientError(
            f"the file cannot be read ({getattr(error, 'strerror', None) or error})", source
        ) from None


def record_of(line: bytes, number: int) -> tuple[bytes, bytes]:
    hint = 'such as {"topic": "chat:lobby", "payload": "hello"}'
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ClientError(f"line {number} is no JSON ({error})", None, hint) from None
    topic = fields.get("topic", fields.get("room")) if isinstance(fields, dict) else None
    if not isinstance(topic, str) or not topic:
        raise ClientError(f"line {number} names no topic", None, hint)
    try:
        name = bytes_of(topic)
    except UnicodeEncodeError:  # Half of a surrogate pair, which JSON can write.
        raise ClientError(f"line {number} has a topic that is no Unicode text", None, hint) from None
    if "payload_base64" in fields:
        try:
            return name, base64.b64decode(fields["payload_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ClientError(f"line {number} has a payload_base64 that is none", None, hint) from None
    if "payload" not in fields:
        return name, line.rstrip(b"\r\n")
    payload = fields["payload"]
    if not isinstance(payload, str):
        payload = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return name, payload.encode("utf-8", "surrogatepass")
