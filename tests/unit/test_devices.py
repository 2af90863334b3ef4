"""Devices of a class: their topics, and the states of their actions."""

import random
from functools import cache

import pytest

from hubsub.config import resolve
from hubsub.control.devices import Action, Devices, Place, actions_of, is_action_name
from hubsub.errors import ConfigError
from hubsub.node import HistoryRow

S = 1_000_000
FIELD = {"name": "field", "match": ["devices/#"], "device": "devices/{device}/#"}


def devices(**more: str) -> Devices | None:
    return Devices.of(resolve({"class": [FIELD | more]}, {}, {}).classes[0])


@cache
def plain() -> Devices:
    found = devices()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "state", "actions"),
    [
        ({}, "devices/{device}/state", "devices/{device}/actions/{action}"),
        ({"device": "device:{device}:*"}, "device:{device}:state", "device:{device}:actions:{action}"),
        ({"device": "a/dev-{device}/*"}, "a/dev-{device}/state", "a/dev-{device}/actions/{action}"),
        ({"device_state": "devices/{device}/is"}, "devices/{device}/is", "devices/{device}/actions/{action}"),
        (
            {"device_actions": "devices/{device}/do:{action}"},
            "devices/{device}/state",
            "devices/{device}/do:{action}",
        ),
    ],
)
def test_topics_stand_behind_the_device_or_where_the_class_says(
    more: dict[str, str], state: str, actions: str
) -> None:
    found = devices(**more)
    assert found is not None and (found.state, found.actions) == (state, actions)


@pytest.mark.parametrize(
    "template",
    ["devices/{device}", "+/{device}/#", "devices/{device}/st*", "devices/{device}/state/#", "d-{device}-*"],
)
def test_a_template_that_does_not_tell_where_gives_no_topics(template: str) -> None:
    assert devices(device=template) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device_state", "devices/state"),
        ("device_state", "devices/{device}/+"),
        ("device_state", "sensors/{device}/state"),
        ("device_state", "devices/{device}/{device}"),
        ("device_actions", "devices/{device}/actions"),
        ("device_actions", "devices/{device}/actions-{action}"),
        ("device_actions", "devices/{device}/{action}/{action}"),
        ("device_actions", "devices/{action}/{device}"),
        ("device_actions", "sensors/{device}/{action}"),
        ("device_actions", "{action}"),
    ],
)
def test_topics_that_are_not_of_one_device_are_refused_with_a_hint(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        devices(**{key: value})
    (problem,) = refused.value.problems
    assert (problem.key, problem.value) == (f"class field, {key}", value) and problem.hint


def test_topics_need_a_device() -> None:
    with pytest.raises(ConfigError, match="is for a class with `device`"):
        resolve({"class": [{"name": "d", "device_state": "devices/{device}/state"}]}, {}, {})


def test_a_name_is_one_device_and_no_other_topic() -> None:
    found = plain()
    for name in ("7", "é", "a:b", "{action}", "x" * 255):
        assert found.has(name), name
        assert found.place(name, found.action_topic(name, "go")) == Place("go", "")
    for name in ("", "a/b", "+", "#", "a\0", "x" * 256, "\ud800"):
        assert not found.has(name), name
    by_colons = devices(device="device:{device}:*")
    assert by_colons is not None and by_colons.has("a.b") and not by_colons.has("a:b")


def test_the_topics_of_a_device_are_told_apart() -> None:
    found = plain()
    for topic, place in {
        "devices/7/actions/go": Place("go", ""),
        "devices/7/actions/go/done": Place("go", "done"),
        "devices/7/actions/done": Place("done", ""),
        "devices/7/actions/done/done": Place("done", "done"),
        "devices/7/actions/go/delivered": Place("go", "delivered"),
        "devices/7/actions/delivered": Place("delivered", ""),
        "devices/7/actions/go/done/delivered": None,
        "devices/7/actions/": None,
        "devices/7/actions": None,
        "devices/7/actions/go/more": None,
        "devices/7/actions/go/done/done": None,
        "devices/7/state": None,
        "devices/70/actions/go": None,
    }.items():
        assert found.place("7", topic) == place, topic
    assert is_action_name("a.B-9_") and not any(map(is_action_name, ("", "a/b", "é", "x" * 101, "a\n")))


class Room:
    """The room of device 7; its records are one second apart."""

    def __init__(self) -> None:
        self.rows: list[HistoryRow] = []

    def say(self, topic: str, **headers: str) -> HistoryRow:
        at, names = len(self.rows) + 1, {"expiry": "mqtt.expiry-s", "answers": "mqtt.correlation-data"}
        headers = {names.get(key, key.replace("_", "-")): value for key, value in headers.items()}
        row = HistoryRow(5, at, at * S, f"devices/7/actions/{topic}".encode(), "me", b"", headers)
        self.rows.append(row)
        return row

    def actions(self) -> list[Action]:
        return actions_of(plain(), "7", self.rows)

    def states(self, now_s: float) -> list[str]:
        return [action.state(int(now_s * S)) for action in self.actions()]


def test_an_action_is_queued_until_it_is_answered_or_its_time_is_over() -> None:
    room = Room()
    room.say("go", hubsub_action="x", expiry="10")
    room.say("go", expiry="no number")
    assert [(action.id, action.expires_us) for action in room.actions()] == [("x", 11 * S), ("5-2", None)]
    assert room.states(10.9) == ["queued", "queued"] and room.states(11) == ["expired", "queued"]
    answer = room.say("go/done", answers="5-2")
    assert room.states(99) == ["expired", "acknowledged"]
    assert room.actions()[1].answer == answer


def test_an_action_is_delivered_from_when_its_client_has_acknowledged_it() -> None:
    room = Room()
    for name in "xyz":
        room.say("go", hubsub_action=name, expiry="10")
    room.say("go/delivered", hubsub_action="y")
    room.say("go/delivered", hubsub_action="y")
    room.say("go/delivered")
    room.say("go/delivered", hubsub_action="nobody")
    assert room.states(9) == ["queued", "delivered", "queued"]
    assert [action.delivered_us for action in room.actions()] == [None, 4 * S, None]
    assert room.states(99) == ["expired", "delivered", "expired"], "the device has it"
    # An answer without an id belongs to the oldest action that could begin, delivered or not.
    room.say("go/done")
    room.say("go/done", answers="y")
    assert room.states(99) == ["acknowledged", "acknowledged", "expired"]


def test_an_answer_that_names_an_action_is_for_that_one() -> None:
    room = Room()
    for name in "abc":
        room.say("go", hubsub_action=name, expiry="3")
    room.say("go/done", answers="b")
    room.say("go/done", hubsub_action="c")
    room.say("go/done", answers="nobody")
    room.say("go/done", answers="b", note="again")
    assert room.states(99) == ["expired", "acknowledged", "acknowledged"]
    assert "note" not in room.actions()[1].answer.headers  # type: ignore[union-attr]


def test_an_answer_that_names_none_is_for_the_oldest_of_its_name_that_waits() -> None:
    room = Room()
    room.say("go", expiry="2")
    room.say("stop")
    room.say("go")
    room.say("go")
    room.say("go/done")  # At 5 s: the first one expired at 3 s.
    assert room.states(99) == ["expired", "queued", "acknowledged", "queued"]
    room.say("go/done")
    room.say("go/done")  # No action waits: this belongs to the expired one, which may have begun in time.
    assert room.states(99) == ["acknowledged", "queued", "acknowledged", "acknowledged"]
    room.say("go/done")
    assert room.states(99) == ["acknowledged", "queued", "acknowledged", "acknowledged"]


def test_an_action_that_is_said_again_is_one_action() -> None:
    room = Room()
    room.say("go", hubsub_action="x")
    room.say("go", hubsub_action="x")
    assert len(room.actions()) == 1


def test_each_answer_is_one_actions_and_what_is_answered_stays_so() -> None:
    """For any order of actions and answers, with and without ids: no answer counts twice, and no later record
    removes one."""
    for seed in range(100):
        dice, room = random.Random(seed), Room()
        before: dict[str, HistoryRow | None] = {}
        for _ in range(40):
            name, known = dice.choice(["go", "stop"]), [action.id for action in room.actions()]
            if dice.random() < 0.5 or not known:
                room.say(name, **({} if dice.random() < 0.5 else {"expiry": str(dice.randint(1, 9))}))
            else:
                room.say(f"{name}/done", **({} if dice.random() < 0.5 else {"answers": dice.choice(known)}))
            now = {action.id: action.answer for action in room.actions()}
            answers = [answer.seq for answer in now.values() if answer is not None]
            assert len(answers) == len(set(answers)), seed
            assert all(now[one] == answer for one, answer in before.items() if answer is not None), seed
            before = now
