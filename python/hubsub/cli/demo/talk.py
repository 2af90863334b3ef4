"""A simulated conversation: the generator decides speaker, room and time; this module has the texts."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import cycle, pairwise
from typing import NamedTuple

from hubsub.cli.demo.generator import events
from hubsub.client import Client
from hubsub.errors import HubSubError

ROOMS = ("lobby", "kitchen", "workshop")
"""The first has the most people. The topic of a room is `chat:ROOM`."""

PAUSE_S_MAX = 3.0
"""Longer pauses are cut to this."""

_NAMES = (
    "Ada Amir Anouk Bo Camille Daria Edda Emeka Farid Greta Hana Inga Ioana Jun Kofi Lena Lior Malik Mei Mira "
    "Nils Noor Olu Paola Quinn Rafael Runa Sami Sofía Tariq Tove Uma Viktor Wanda Yuki Zoë"
).split()
_SAYINGS = (
    "good morning, all",
    "has anybody seen the second charger?",
    "it was on the window sill an hour ago",
    "found it, thanks 🙏",
    "the build is green again",
    "it was green yesterday, too, until somebody looked at it",
    "who is in for lunch?",
    "me, but not before one",
    "there is soup, and there is the other soup",
    "I vote for the other soup",
    "could you read my patch when you have a minute?",
    "reading it now",
    "two remarks, both small",
    "you are right about the first one",
    "and the second?",
    "let me sleep on the second",
    "does anyone know why the lamp in the corner blinks?",
    "it says hello to you",
    "that is not in the manual",
    "nothing is in the manual",
    "the train is late, start without me",
    "we are still looking for the room anyway",
    "it is the one with the blue door",
    "all of them have blue doors",
    "then it is the last one",
    "café or tea?",
    "tea, please, if there is any left",
    "there is always tea",
    "I tried it on the small machine and it is fast enough",
    "how fast is enough?",
    "faster than me",
    "ok 🙂",
    "merci beaucoup",
    "schöne Grüße aus dem Zug",
    "また明日",
    "that sounds like a plan",
    "somebody should write this down",
    "I wrote it down",
    "where?",
    "in the notes, right under the thing about the lamp",
    "did it rain on your side of the town, too?",
    "only a little, and only on me",
    "see you on Thursday",
    "Thursday it is",
)
_DOES = ("waves", "makes tea", "nods", "looks for the charger", "is reading", "will be right back")


class Line(NamedTuple):
    """The next event of the conversation."""

    pause_s: float
    room: str
    name: str
    kind: str
    text: str


def lines(seed: int = 1) -> Iterator[Line]:
    """An endless conversation: messages, actions, joins and leaves. The same seed gives the same one."""
    dice = random.Random(seed)
    # The order of the texts makes sense: each room goes through them in order, starting at a different place.
    sayings = {
        room: cycle(_SAYINGS[at:] + _SAYINGS[:at]) for room, at in zip(ROOMS, (0, 10, 28), strict=True)
    }
    rows = events(sys.maxsize, len(ROOMS), len(_NAMES), seed)
    here: set[tuple[str, str]] = set()
    for before, event in pairwise(rows):
        who = event["room"], event["user"]
        # A user who is in the room already, from another visit or since before, does not join again.
        if event["kind"] == "join" and who in here:
            continue
        (here.discard if event["kind"] == "leave" else here.add)(who)
        pause = datetime.fromisoformat(event["ts"]) - datetime.fromisoformat(before["ts"])
        room, name = ROOMS[int(event["room"][-4:])], _NAMES[int(event["user"][-5:])]
        match event["kind"]:
            case "message":
                text = next(sayings[room])
            case "action":
                text = dice.choice(_DOES)
            case _:
                text = ""
        yield Line(min(pause.total_seconds(), PAUSE_S_MAX), room, name, event["kind"], text)


async def talk(servers: str, pace: float) -> None:
    """Publishes the conversation until cancelled.

    Args:
        servers: Redis URL of the nodes; if one is gone the client uses the next.
        pace: Speed factor relative to natural speed, above 0.
    """
    async with Client(servers) as client:
        for line in lines():
            await asyncio.sleep(line.pause_s / pace)
            said = {"name": line.name, "kind": line.kind, "text": line.text, "at": int(time.time() * 1_000)}
            # A message that is lost with a node is not sent again; the conversation continues.
            with suppress(HubSubError):
                await client.publish(f"chat:{line.room}", json.dumps(said, ensure_ascii=False))
