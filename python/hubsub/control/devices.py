"""Devices: the topics that a class gives each of them, and the progress of their actions.

A device is what the template `device` of a class finds in a topic. It publishes its state on its state topic.
Each action arrives on its own topic; a device replies by publishing on that action's reply topic:

    devices/7/state                   its state
    devices/7/actions/reboot          it is to reboot
    devices/7/actions/reboot/done     it did

When its MQTT client acknowledges an action, its node publishes on `devices/7/actions/reboot/delivered`.

Invariant: the progress of an action is a function of its room's records and of the time. Any node therefore
returns the same, also after a restart.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from hubsub.config import RoomClass
from hubsub.names import ACTION, DEVICE, device_pattern, device_topics
from hubsub.node import HistoryRow

DEVICE_BYTES_MAX: Final = 255
"""Limit of a device's name."""

ACTION_ID: Final = "hubsub-action"
"""Header of an action: its id. Without it the position is the id."""

EXPIRY: Final = "mqtt.expiry-s"
CORRELATION: Final = "mqtt.correlation-data"
RESPONSE_TOPIC: Final = "mqtt.response-topic"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_STRANGE = re.compile(r"[/+#\x00\ud800-\udfff]")

ENDS: Final[tuple[Literal["done", "delivered"], ...]] = ("done", "delivered")

State = Literal["queued", "delivered", "acknowledged", "expired"]


def is_action_name(text: str) -> bool:
    """Whether the name of an action is valid: letters, digits, `_`, `.` and `-`, at most 100."""
    return _NAME.fullmatch(text) is not None


class Place(NamedTuple):
    """The role of a device's topic."""

    action: str
    end: Literal["", "done", "delivered"]
    """The part after the action: empty for the action itself, `done` for its reply."""


@dataclass(frozen=True)
class Devices:
    """The devices of a class.

    Args:
        room_class: Its name.
        template: Finds a device in a topic.
        state: Template of state topics.
        actions: Template of action topics.
    """

    room_class: str
    template: str
    state: str
    actions: str

    @classmethod
    def of(cls, room_class: RoomClass) -> Self | None:
        """The devices of a class; None if it has none, or their topics have no defined roles."""
        topics = device_topics(room_class.device, room_class.device_state, room_class.device_actions)
        if room_class.device is None or topics is None:
            return None
        return cls(room_class.name, room_class.device, *topics)

    def has(self, device: str) -> bool:
        """Whether this is a valid device name: its own state topic names it, and no other device."""
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
        before, _, after = self.actions.partition(DEVICE)
        return f"{before}{device}{after.replace(ACTION, action)}"

    def answer_topic(self, device: str, action: str) -> str:
        """Topic of the reply to an action: `done` after the action, with the separator that precedes the action."""
        return f"{self.action_topic(device, action)}{self.actions.removesuffix(ACTION)[-1]}done"

    def place(self, device: str, topic: str) -> Place | None:
        """The role of one of a device's topics; None: it belongs to no action."""
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
    id: str
    name: str
    row: HistoryRow
    expires_us: int | None
    """Time from which it may not begin any more; None: never."""
    answer: HistoryRow | None = None
    delivered_us: int | None = None
    """When its device's client had acknowledged its message; None: it has not, or does not use MQTT."""

    def state(self, now_us: int) -> State:
        """State at a time. A reply or an acknowledgement counts even after the expiry: the device began in time."""
        if self.answer is not None:
            return "acknowledged"
        if self.delivered_us is not None:
            return "delivered"
        return "queued" if self.is_open(now_us) else "expired"

    def is_open(self, now_us: int) -> bool:
        return self.expires_us is None or now_us < self.expires_us


def actions_of(devices: Devices, device: str, rows: Iterable[HistoryRow]) -> list[Action]:
    """The actions among a room's records, in their order, with their replies.

    A reply that names an action, by its correlation data or the header `hubsub-action`, belongs to it. A
    reply that names none, as before MQTT 5, belongs to the oldest action of its name without a reply that had
    not expired by then; if all had, to the latest: the device began in time and took longer. The first reply
    counts.

    Args:
        devices: Devices of the class.
        device: Name of the device.
        rows: Records in the room's order.
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
            # A repeated id means the same action again.
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
    """When a record with that timestamp expires, in µs since 1970; None: never."""
    text = headers.get(EXPIRY, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return timestamp_us + int(text) * 1_000_000 if is_number else None
