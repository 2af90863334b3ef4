"""The error table: codes, classes and their mappings."""

import pytest

from hubsub import errors
from hubsub.errors import (
    BY_CODE,
    ConfigError,
    ElsewhereError,
    HubSubError,
    NotRecoveredError,
    Problem,
    PublishRateError,
    Refused,
    ReplyError,
    RoomInUseError,
)


def test_codes_are_unique_and_every_class_has_one() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, HubSubError)]
    assert len({c.code for c in classes}) == len(classes) == len(BY_CODE)


def test_every_row_is_whole() -> None:
    for code, cls in BY_CODE.items():
        assert 400 <= cls.status < 600 or cls is ElsewhereError, code
        assert cls.words and not cls.words.endswith("."), code


def test_what_a_person_reads_has_value_and_hint() -> None:
    error = HubSubError("the thing broke", "value", "mend it")
    assert str(error) == "the thing broke: value\nhint: mend it"


def test_an_error_line_becomes_the_class_of_its_code() -> None:
    assert isinstance(errors.from_reply("ERR room has subscribers"), RoomInUseError)
    assert isinstance(
        errors.from_reply("NOTRECOVERED unknown epoch, history starts at 3-4"), NotRecoveredError
    )
    assert isinstance(errors.from_reply("ERR of another kind"), ReplyError)
    limited = errors.from_reply("ERR max publishes per minute reached; hint: publishes_per_minute_max")
    assert isinstance(limited, PublishRateError) and limited.hint == "publishes_per_minute_max"
    other = errors.from_reply("ERR transaction is too large; hint: transaction_bytes_max")
    assert isinstance(other, ReplyError)
    assert (other.message, other.hint) == ("ERR transaction is too large", "transaction_bytes_max")


@pytest.mark.parametrize("hint", [cls.settings for cls in Refused.__subclasses__() if cls.settings])
def test_each_hint_of_the_core_is_recognized(hint: str) -> None:
    error = errors.from_reply(f"ERR unknown command 'x; hint: y'; hint: {hint}")
    assert isinstance(error, ReplyError)
    assert (error.message, error.hint) == ("ERR unknown command 'x; hint: y'", hint)


@pytest.mark.parametrize(
    "line",
    [
        "ERR unknown command 'x; hint: y', with args beginning with: 'groups_max' ",
        "ERR wrong number of arguments for 'x; hint: groups_max' command",
        "ERR no; hint: such thing",
        "ERR no; hint: ",
        "; hint: groups_max",
    ],
)
def test_text_that_an_error_quotes_is_no_hint(line: str) -> None:
    error = errors.from_reply(line)
    assert isinstance(error, ReplyError)
    assert (error.message, error.hint) == (line, None)


def test_all_configuration_problems_are_told() -> None:
    text = str(ConfigError([Problem("a", 1, "is bad", "use 2"), Problem("b", None, "is no key")]))
    assert "a: is bad: 1" in text and "hint: use 2" in text and "b: is no key" in text
