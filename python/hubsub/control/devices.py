"""Devices: the topics that a class gives each of them, and what became of the actions that they were given.

A device is what the template `device` of a class finds in a topic. It says how it is on its state topic. What it is to
do comes on a topic for each action; it has answered when something is published on that one's topic for answers:

    devices/7/state                   its state
    devices/7/actions/reboot          it is to reboot
    devices/7/actions/reboot/done     it did

That its MQTT client has acknowledged an action its node says on `devices/7/actions/reboot/delivered`.

Invariant: what became of an action is a function of its room's records and of the time. So any node says the same, and
after a restart too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from hubsub.config import RoomClass
from hubsub.names import ACTION, DEVICE, device_pattern, device_topics
from hubsub.node import HistoryRow

DEVICE_BYTES_MAX: Final = 255
"""Of a device's name."""

ACTION_ID: Final = "hubsub-action"
"""Header of an action: its id. One without is known by its position."""

EXPIRY: Final = "mqtt.expiry-s"
CORRELATION: Final = "mqtt.correlation-data"
RESPONSE_TOPIC: Final = "mqtt.response-topic"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_STRANGE = re.compile(r"[/+#\x00\ud800-\udfff]")

ENDS: Final[tuple[Literal["done", "delivered"], ...]] = ("done", "delivered")

State = Literal["queued", "delivered", "acknowledged", "expired"]


def is_action_name(text: str) -> bool:
    """Whether an action may be called so: letters, digits, `_`, `.` and `-`, at most 100."""
    return _NAME.fullmatch(text) is not None


class Place(NamedTuple):
    """What a topic of a device is for."""

    action: str
    end: Literal["", "done", "delivered"]
    """What stands behind the action: nothing for itself, `done` for its answer."""


@dataclass(frozen=True)
class Devices:
    """The devices of a class.

    Args:
        room_class: Its name.
        template: Finds a device in a topic.
        state: Template of state topics.
        actions: Of topics of actions.
    """

    room_class: str
    template: str
    state: str
    actions: str

    @classmethod
    def of(cls, room_class: RoomClass) -> Self | None:
        """None for a class that has none, or says of no topic what it is for."""
        topics = device_topics(room_class.device, room_class.device_state, room_class.device_actions)
        if room_class.device is None or topics is None:
            return None
        return cls(room_class.name, room_class.device, *topics)

    def has(self, device: str) -> bool:
        """Whether this may be a device's name: its own state topic is about it, and about no other."""
        if (
            _STRANGE.search(device)
            or not 0 < len(device.encode("utf-8", "surrogatepass")) <= DEVICE_BYTES_MAX
        ):
            return False
        found = re.match(device_pattern(self.template), self.state_topic(device))
        return found is not None and found[1] == device

    def state_topic(self, device: str) -> str:
        return self.state.replace(DEVICE, device)

    def action_topic(self, device: str, action: str) -> str:
        before, _, behind = self.actions.partition(DEVICE)
        return f"{before}{device}{behind.replace(ACTION, action)}"

    def answer_topic(self, device: str, action: str) -> str:
        """Where a device says that it is done: `done` behind the action, parted from it as that is before."""
        return f"{self.action_topic(device, action)}{self.actions.removesuffix(ACTION)[-1]}done"

    def place(self, device: str, topic: str) -> Place | None:
        """What one of a device's topics is for; None: for no action."""
        before = self.action_topic(device, "")
        if not topic.startswith(before):
            return None
        action = topic[len(before) :]
        for end in ENDS:
            of_action = action.removesuffix(f"{before[-1]}{end}")
            if of_action != action:
                return Place(of_action, end) if is_action_name(of_action) else None
        return Place(action, "") if is_action_name(action) else None


@dataclass(frozen=True)
class Action:
    """An action, and what became of it."""

    id: str
    name: str
    row: HistoryRow
    expires_us: int | None
    """When it is too late to begin it; None: never."""
    answer: HistoryRow | None = None
    delivered_us: int | None = None
    """When its device's client had acknowledged its message; None: it has not, or is none of MQTT."""

    def state(self, now_us: int) -> State:
        """An answer counts whenever it came: the device began in time. What it has it has, too."""
        if self.answer is not None:
            return "acknowledged"
        if self.delivered_us is not None:
            return "delivered"
        return "queued" if self.is_open(now_us) else "expired"

    def is_open(self, now_us: int) -> bool:
        """Whether it may begin then."""
        return self.expires_us is None or now_us < self.expires_us


def actions_of(devices: Devices, device: str, rows: Iterable[HistoryRow]) -> list[Action]:
    """The actions among a room's records, in their order, with their answers.

    An answer that names an action, by its correlation data or the header `hubsub-action`, is that one's. One that names
    none, as before MQTT 5, is for the oldest of its name that has no answer and had not expired by then; if all of them
    had, for the latest: the device began in time and took longer. The first answer counts.

    Args:
        devices: Of its class.
        device: Its name.
        rows: In the room's order.
    """
    found: dict[str, Action] = {}
    for row in rows:
        place = devices.place(device, row.topic.decode(errors="surrogateescape"))
        if place is None:
            continue
        if place.end == "delivered":
            action = found.get(row.headers.get(ACTION_ID, ""))
            if action is not None and action.delivered_us is None:
                found[action.id] = replace(action, delivered_us=row.timestamp_us)
        elif not place.end:
            name = row.headers.get(ACTION_ID) or f"{row.epoch}-{row.seq}"
            # Who says an id again says the same action again.
            expires_us = expiry_of(row.headers, row.timestamp_us)
            found.setdefault(name, Action(name, place.action, row, expires_us))
        elif (answered := _answered(found, place.action, row)) is not None:
            found[answered.id] = replace(answered, answer=row)
    return list(found.values())


def _answered(found: Mapping[str, Action], name: str, row: HistoryRow) -> Action | None:
    named = row.headers.get(CORRELATION) or row.headers.get(ACTION_ID)
    if named is not None:
        action = found.get(named)
        return action if action is not None and action.answer is None else None
    waiting = [action for action in found.values() if action.name == name and action.answer is None]
    begun = [action for action in waiting if action.is_open(row.timestamp_us)]
    return begun[0] if begun else waiting[-1] if waiting else None


def expiry_of(headers: Mapping[str, str], timestamp_us: int) -> int | None:
    """When a record of that time is over, in µs since 1970; None: never."""
    text = headers.get(EXPIRY, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return timestamp_us + int(text) * 1_000_000 if is_number else None
