"""Test data: people who chat in rooms, or devices that report their state.

Everything is seeded: the same arguments give the same events. Time is simulated, starting with the first
second of 2026.
"""

import heapq
import itertools
import math
import random
from bisect import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

_WORDS = (
    "the a my your this that some any new old server room client message disk shard topic package driver "
    "kernel works breaks starts stops hangs sees needs gives takes reads writes why how when where what again "
    "never always maybe sure thanks hello café naïve größer 日本語 🙂 ok nope try it now then before after"
).split()
_START = datetime(2026, 1, 1, tzinfo=UTC)
_BEFORE_S = 3_600.0
"""The simulation starts this long before the log, which thus begins with people in the rooms."""

_VISITS_A_S = 0.026
"""Visits that begin per second in all rooms together: they make an event about every two seconds."""
_RHYTHM_S = 3_600.0
_RHYTHM = 0.8
"""A room has busy and quiet times: its rate varies by this share around the mean."""
_SAID = 18
"""Mean number of messages in a visit."""
_PAUSE_S = 45.0
"""Mean pause between two messages of a visit."""
_ACTIONS, _LEAVES = 0.04, 0.6
"""Share of messages that are actions; share of visits that end with a leave event instead of silence."""

_STEP_S = 60.0
"""Time between two reports of a device."""


def events(count: int, rooms: int = 100, users: int = 1_000, seed: int = 1) -> Iterator[dict[str, Any]]:
    """A chat log: people join, send messages, and leave or fall silent. The same arguments give the same events.

    Args:
        count: Number of events.
        rooms: Number of rooms; their sizes follow Zipf's law.
        users: Number of users.
        seed: Seed of the generator.

    Yields:
        Dicts of `n` (from 0), `room`, `user`, `ts` (UTC), `kind` (message, action, join, leave), `text`.
    """
    dice = random.Random(seed)
    for n, (at, room, user, kind) in enumerate(itertools.islice(_happenings(dice, rooms, users), count)):
        text = " ".join(dice.choices(_WORDS, k=dice.randint(1, 16))) if kind in ("message", "action") else ""
        yield {
            "n": n,
            "room": f"chat:room-{room:04d}",
            "user": f"user-{user:05d}",
            "ts": _text(at),
            "kind": kind,
            "text": text,
        }


def reports(count: int, devices: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Reports of thermostats, each once a minute. The same arguments give the same reports.

    Args:
        count: Number of reports.
        devices: Number of devices.
        seed: Seed of the generator.

    Yields:
        Dicts of `n` (from 0), `device`, `ts` (UTC), `state` (idle, heating, fault), `temperature` and
        `target` (°C), `battery` (%).
    """
    dice = random.Random(seed)
    running = [_thermostat(random.Random(dice.random())) for _ in range(devices)]
    for n in range(count):
        step, device = divmod(n, devices)
        at = _STEP_S * (step + device / devices)
        yield {"n": n, "device": f"thermostat-{device:02d}", "ts": _text(at), **next(running[device])}


def _text(at: float) -> str:
    return (_START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _happenings(dice: random.Random, rooms: int, users: int) -> Iterator[tuple[float, int, int, str]]:
    """Endless events in order of time: seconds since the start, room, user, kind."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, rooms + 1)))
    ties = itertools.count()
    # The next event of each visit: time, tie-break, room, user, kind, messages left. Its size is bounded by
    # the number of people who are in a room at one time.
    due: list[tuple[float, int, int, int, str, int]] = []
    arrival = -_BEFORE_S
    while True:
        while not due or arrival <= due[0][0]:
            room = min(bisect(weights, dice.random() * weights[-1]), rooms - 1)
            # A room has regulars: a window of the users, a quarter of them.
            user = (room * 7919 + dice.randrange(max(1, users // 4))) % users
            if dice.random() * (1 + _RHYTHM) < _busy(room, arrival):
                said = round(dice.expovariate(1 / _SAID))
                heapq.heappush(due, (arrival, next(ties), room, user, "join", said))
            arrival += dice.expovariate(_VISITS_A_S * (1 + _RHYTHM))
        at, _, room, user, kind, left = heapq.heappop(due)
        if at >= 0:
            yield at, room, user, kind
        then = at + dice.expovariate(1 / _PAUSE_S)
        if left:
            says = "action" if dice.random() < _ACTIONS else "message"
            heapq.heappush(due, (then, next(ties), room, user, says, left - 1))
        elif kind != "leave" and dice.random() < _LEAVES:
            heapq.heappush(due, (then, next(ties), room, user, "leave", 0))


def _busy(room: int, at: float) -> float:
    """Relative rate of visits at this time, 1 in the mean; each room has its peak at a different minute."""
    return 1 + _RHYTHM * math.sin(2 * math.pi * (at / _RHYTHM_S + room * 0.618))


def _thermostat(dice: random.Random) -> Iterator[dict[str, Any]]:
    """Endless reports of a thermostat that heats a room, gets new targets now and then, and may fail."""
    state, target = "idle", float(dice.choice((19, 20, 21)))
    temperature, battery = target + dice.uniform(-1, 1), dice.uniform(60, 100)
    loss_h, heat_h = dice.uniform(0.2, 0.35), dice.uniform(10, 14)  # Share of the difference; °C.
    outside, hours = dice.uniform(2, 8), _STEP_S / 3_600
    while True:
        yield {
            "state": state,
            "temperature": round(temperature + dice.gauss(0, 0.05), 2),
            "target": target,
            "battery": round(battery, 1),
        }
        temperature += hours * ((heat_h if state == "heating" else 0) - loss_h * (temperature - outside))
        battery = max(0.0, battery - dice.uniform(0, 0.02))
        if dice.random() < hours / 1.5:
            target = float(dice.choice((17, 18, 19, 20, 21, 22)))
        if state == "fault":
            state = "idle" if dice.random() < hours / 0.4 else "fault"
        elif dice.random() < hours / 8:
            state = "fault"
        elif temperature < target - 0.5:
            state = "heating"
        elif temperature > target + 0.5:
            state = "idle"
