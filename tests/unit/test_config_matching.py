"""Validity of class patterns and room templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.config import Bad, resolve
from hubsub.config.matching import covers, parse_pattern, parse_template, room_of, strange_room
from hubsub.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "matches", "differs"),
    [
        ("irc:*", ["irc:", "irc:a/b"], ["irc", "xirc:"]),
        ("chat/#", ["chat", "chat/a", "chat/a/b"], ["chats"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
        ("#", ["a", "a/b", ""], ["$SYS"]),
        ("+/a", ["b/a"], ["$x/a"]),
        ("glob:a+", ["a+"], ["aa"]),
        ("mqtt:a*", ["a*"], ["ab"]),
        ("h[ae]llo", ["hello", "hallo"], ["hillo"]),
        ("h[^e]llo", ["hallo"], ["hello"]),
        ("h[c-a]llo", ["hbllo"], ["hdllo"]),
        ("a\\*", ["a*"], ["ab"]),
        ("a?c", ["abc", "a/c"], ["ac"]),
        ("[]a", [], ["a", ""]),
    ],
)
def test_patterns_match_as_the_data_plane_does(pattern: str, matches: list[str], differs: list[str]) -> None:
    compiled = parse_pattern(pattern)
    assert all(compiled.fullmatch(name) for name in matches)
    assert not any(compiled.fullmatch(name) for name in differs)


@pytest.mark.parametrize("pattern", ["mqtt:a/#/b", "mqtt:a#", "mqtt:a+/b", "", "glob:"])
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    with pytest.raises(Bad):
        parse_pattern(pattern)


@given(st.text(alphabet="[]^-\\*?ab#+/", max_size=12))
def test_any_glob_can_be_read(text: str) -> None:
    parse_pattern("glob:x" + text)


def test_a_template_keeps_as_many_levels_as_it_has() -> None:
    template = parse_template("devices/+")
    assert template is not None
    assert room_of(template, "devices/a/b/c") == "devices/a"
    assert room_of(template, "devices") == "devices"
    assert room_of(template, "other/a/b") == "other/a/b"


@pytest.mark.parametrize("text", ["", "a/#", "a+/b"])
def test_a_template_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Bad):
        parse_template(text)


@pytest.mark.parametrize(
    ("patterns", "template", "sound"),
    [
        (["devices/#"], "devices/+", True),
        (["devices/+/state"], "devices/+", False),
        (["devices/+/state", "devices/+"], "devices/+", True),
        (["irc:*"], "a/+", True),
        (["a/*/z"], "a/+", False),
        (["+/#"], "+", True),
        (["a/b/#"], "+", False),
    ],
)
def test_a_template_must_yield_rooms_of_its_own_class(
    patterns: list[str], template: str, sound: bool
) -> None:
    levels = parse_template(template)
    assert levels is not None
    assert (strange_room(patterns, levels) is None) == sound


def test_the_refusal_names_topic_and_room() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"class": [{"name": "d", "match": ["d/+/s"], "room": "d/+"}]}, {}, {})
    assert "'d/x/s'" in str(caught.value) and "add a pattern that matches 'd/x'" in str(caught.value)


def test_a_device_template_is_checked_with_its_class() -> None:
    good = resolve({"class": [{"name": "d", "match": ["devices/#"], "device": "devices/{device}/#"}]}, {}, {})
    assert good.classes[0].device == "devices/{device}/#"
    for template in ("devices/+/#", "devices/{device}*", "", 7):
        with pytest.raises(ConfigError) as refused:
            resolve({"class": [{"name": "d", "device": template}]}, {}, {})
        (problem,) = refused.value.problems
        assert (problem.key, problem.value) == ("class d, device", template)
        assert template in ("", 7) or "devices/{device}/#" in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "of_class", "covered"),
    [
        ("chat:*", ["chat:*"], True),
        ("chat*", ["chat:*", "chat/#", "chatter"], True),
        ("chat:a*", ["chat:*"], False),
        ("chat:*", ["chat:*", "irc:*"], False),
        ("c[a-h]at*", ["chat:*"], False),
        ("c[a-h]at*", ["c[a-h]at*"], True),
        ("*:*", ["chat:*"], False),
        ("*", [], True),
        ("#", [], False),
        ("#", ["chat:*"], True),
        ("#", ["*"], False),
        ("#", ["$x/*"], False),
        ("devices/#", ["devices/+/state"], True),
        ("devices/#", ["devices*"], False),
        ("+/#", ["devices/#"], False),
        ("devices/+", ["devices/#"], False),
    ],
)
def test_a_pattern_covers_a_class_only_if_every_room_of_it_matches(
    pattern: str, of_class: list[str], covered: bool
) -> None:
    assert covers(pattern, of_class) == covered


def test_waiting_for_the_archive_is_for_logs_and_bounds_all_that_a_hub_has() -> None:
    def problem(durability: str, **history: str) -> str:
        cls = {"name": "c", "durability": durability, "history": history}
        try:
            resolve({"class": [cls], "data": "d"}, {}, {})
        except ConfigError as error:
            (found,) = error.problems
            assert found.key == "class c, history.archive_wait"
            return found.reason
        return ""

    assert problem("durable", bytes="1GiB", archive_wait="1GiB") == ""
    assert "must not be below history.bytes" in problem("durable", bytes="1GiB", archive_wait="1MiB")
    assert "classes with a log" in problem("ephemeral", bytes="1MiB", archive_wait="1GiB")
