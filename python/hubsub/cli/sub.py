"""`hubsub sub`: prints records as they arrive, reconnects, and finally prints how to resume.

Records go to stdout; connection changes, gaps and the last positions go to stderr.
"""

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hubsub.cli.common import Server, new_app, print_json, redis_url, say, shown
from hubsub.config.kinds import Bad, parse_duration
from hubsub.errors import ClientError, HubSubError
from hubsub.names import bytes_of, text_of

app = new_app("Prints the records of topics as they come.")


@app.command()
def sub(
    topics: Annotated[list[str], typer.Argument(help="Topics, or patterns with --pattern.")],
    pattern: Annotated[bool, typer.Option("--pattern", "-p", help="The topics are Redis globs.")] = False,
    rewind: Annotated[
        str | None,
        typer.Option(
            "--rewind", metavar="N|TIME", help="Starts with the last N records, or those of TIME (10s)."
        ),
    ] = None,
    resume: Annotated[
        list[str] | None,
        typer.Option(
            "--resume",
            metavar="EPOCH-SEQ",
            help="Starts behind this position; with several topics, one for each in their order.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object a record.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Ends after so many records.")
    ] = None,
    server: Server = None,
) -> None:
    """Prints each record as a line `topic: payload` or JSON, until --count records have arrived or a signal ends it."""
    if pattern and (rewind is not None or resume):
        raise typer.BadParameter("--rewind and --resume go with topics; what --pattern matches starts now")
    start: dict[str, Any] = {}
    if rewind is not None:
        start = _rewind(rewind)
    if resume:
        if rewind is not None:
            raise typer.BadParameter("give --rewind or --resume, not both")
        start = {"resume": _resume(topics, resume)}
    names = [bytes_of(topic) for topic in topics]
    raise typer.Exit(asyncio.run(_print(redis_url(server), names, pattern, start, as_json, count)))


def _resume(topics: list[str], resume: list[str]) -> dict[bytes, Any]:
    from hubsub.client import Position

    if len(resume) != len(topics):
        raise typer.BadParameter(
            f"a position is of one room: give --resume once for each topic, in their order; there are "
            f"{len(topics)} topics and {len(resume)} positions"
        )
    try:
        positions = [Position.parse(text) for text in resume]
    except ClientError as error:
        raise typer.BadParameter(f"--resume: {error.message}; {error.hint}") from None
    return dict(zip(map(bytes_of, topics), positions, strict=True))


def _rewind(text: str) -> dict[str, Any]:
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return {"last": int(text)}
    try:
        return {"since_ms": max(0, int(time.time() * 1_000) - parse_duration(text))}
    except Bad as bad:
        raise typer.BadParameter(f"--rewind {bad.reason}: {text}; {bad.hint}") from None


async def _print(
    url: str, names: list[bytes], pattern: bool, start: dict[str, Any], as_json: bool, count: int | None
) -> int:
    """Prints records; returns the exit code. A signal ends it between two of them."""
    from hubsub.client import Client, Gap, Options

    lost_at: float | None = None  # Time of the loss while disconnected,
    gaps: list[str] = []  # and gaps to report after the reconnect.

    def on_gap(gap: Gap) -> None:
        if gap.first is None:
            why = "patterns do not resume" if pattern else "the room began anew, or keeps no history"
            what = f"{why}; records may be missing"
        else:
            what = f"from {gap.first} to {gap.last}" if gap.last else f"from {gap.first} to the next one here"
        text = f"gap in {shown(text_of(gap.topic))}: {what}"
        if lost_at is None:
            say(text)
        else:
            gaps.append(text)

    def say_gaps() -> None:
        for text in gaps:
            say(text)
        gaps.clear()

    def on_connection(error: HubSubError | None) -> None:
        nonlocal lost_at
        if error is None:
            seconds = time.monotonic() - (lost_at or 0.0)
            lost_at = None
            # Topics that could not resume are reported as gaps.
            say(f"connected again after {seconds:.1f} s{'' if gaps else ', going on from the last position'}")
            say_gaps()
        else:
            lost_at = time.monotonic()
            say(f"connection lost ({error.what}), trying again")

    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None, "a coroutine runs in a task"
    code = 0

    def end(number: int) -> None:
        nonlocal code
        code = 128 + number
        me.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, end, number)
    # For a person at a screen: reconnect at most a second after the server is back.
    client = Client(url, options=Options(backoff_s_max=1.0))
    topics, patterns = ([], names) if pattern else (names, [])
    records = client.subscribe(
        *topics, patterns=patterns, on_gap=on_gap, on_connection=on_connection, **start
    )
    try:
        async with records:
            say(f"subscribed to {', '.join(shown(text_of(n)) for n in names)}")
            left = count
            async for record in records:
                _print_record(record, as_json)
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
    except asyncio.CancelledError:
        pass
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await client.close()
        say_gaps()
        if records.is_hubsub:
            _say_how_to_resume(topics, records.positions)
    return code


def _say_how_to_resume(topics: list[bytes], positions: Mapping[bytes, Any]) -> None:
    """Prints nothing if a topic has no position, as with patterns and plain Redis."""
    if topics and all(topic in positions for topic in topics):
        names = [shlex.quote(text_of(topic)) for topic in topics]
        resume = [f"--resume {positions[topic]}" for topic in topics]
        say(f"go on from here: hubsub sub {' '.join(map(shown, [*names, *resume]))}")


def _print_record(record: Any, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {"topic": text_of(record.topic)}
        if record.pattern is not None:
            fields["pattern"] = text_of(record.pattern)
        if record.position is not None:
            fields["position"] = str(record.position)
        try:
            fields["payload"] = record.payload.decode()
        except UnicodeDecodeError:
            import base64

            fields["payload_base64"] = base64.b64encode(record.payload).decode()
        print_json(fields)
    else:
        print(f"{shown(text_of(record.topic))}: {shown(record.payload.decode('utf-8', 'backslashreplace'))}")
    sys.stdout.flush()
