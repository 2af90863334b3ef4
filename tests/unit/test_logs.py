"""Log lines: control characters in client-supplied values do not reach the terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from hubsub.cli.logs import set_up

HOSTILE = "a\x1b]0;title\x07\r\nforged line\x7f\x9b2J \u2028é"


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


def test_a_text_line_escapes_what_is_not_printable(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    structlog.get_logger().warning("page refused", origin=HOSTILE, shard=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert r"a\x1b]0;title\x07\r\nforged line\x7f\x9b2J \u2028é" in line and "shard" in line


def test_a_json_line_says_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "json")
    structlog.get_logger().warning("page refused", origin=HOSTILE)
    text = capsys.readouterr().err.removesuffix("\n")
    assert json.loads(text)["origin"] == HOSTILE
    assert not any(ord(c) < 0x20 for c in text)


def test_an_error_of_ours_keeps_its_traceback_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        structlog.get_logger().exception("it failed")
    text = capsys.readouterr().err
    assert len(text.splitlines()) > 2 and "Traceback" in text and r"ValueError: \x1b[31m" in text
