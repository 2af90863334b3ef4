"""`hubsub demo generate`: a seeded chat log, to try things with and to test with."""

import json
import random
from bisect import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Annotated, Any

import typer

from hubsub.cli.common import group

app = group("Makes data to try things with.")

_WORDS = (
    "the a my your this that some any new old server room client message disk shard topic package driver "
    "kernel works breaks starts stops hangs sees needs gives takes reads writes why how when where what again "
    "never always maybe sure thanks hello café naïve größer 日本語 🙂 ok nope try it now then before after"
).split()
_KINDS = ("message",) * 88 + ("action",) * 4 + ("join",) * 5 + ("leave",) * 3
_START = datetime(2026, 1, 1, tzinfo=UTC)


def events(count: int, rooms: int = 100, users: int = 1_000, seed: int = 1) -> Iterator[dict[str, Any]]:
    """A chat log: the same arguments give the same events.

    Args:
        count: Number of events.
        rooms: Number of rooms; their sizes follow Zipf's law.
        users: Number of users.
        seed: Seed of the generator.

    Yields:
        Dicts of `n` (from 0), `room`, `user`, `ts` (UTC), `kind` (message, action, join, leave), `text`.
    """
    dice = random.Random(seed)
    weights = list(accumulate(1 / rank for rank in range(1, rooms + 1)))
    at = _START
    for n in range(count):
        at += timedelta(seconds=dice.expovariate(0.5))
        room = bisect(weights, dice.random() * weights[-1])
        # A room has its regulars: a window of the users, a quarter of them.
        user = (room * 7919 + dice.randrange(max(1, users // 4))) % users
        kind = dice.choice(_KINDS)
        text = " ".join(dice.choices(_WORDS, k=dice.randint(1, 16))) if kind in ("message", "action") else ""
        yield {
            "n": n,
            "room": f"chat:room-{min(room, rooms - 1):04d}",
            "user": f"user-{user:05d}",
            "ts": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "kind": kind,
            "text": text,
        }


@app.command("generate")
def generate(
    count: Annotated[int, typer.Option("--events", help="Number of events.", min=0)] = 1_000,
    rooms: Annotated[int, typer.Option(help="Number of rooms.", min=1)] = 100,
    users: Annotated[int, typer.Option(help="Number of users.", min=1)] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
) -> None:
    """Prints a chat log as JSON lines of `topic` and `payload`, as `hubsub pub --from -` takes them."""
    for event in events(count, rooms, users, seed):
        print(
            json.dumps({"topic": event["room"], "payload": event}, ensure_ascii=False, separators=(",", ":"))
        )
