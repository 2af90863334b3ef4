"""Logs of a node: structured events on stderr, as text for people or JSON lines for machines."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up(level: str, form: str) -> None:
    """Configures the process's log. Call it again to change the level.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `auto`, `text` or `json`.
    """
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if as_text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _printable if as_text else _head_first,
    ]
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def _head_first(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Puts the same three keys at the start of every line."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    return head | dict(event)


def _printable(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes control characters, as clients choose some of the values. A traceback keeps its lines."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key == "exception" else [value]
            event[key] = _Escaped("\n".join(map(_escaped, lines)))
    return event


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Escaped(str):
    """A value that the renderer quotes and does not escape again."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{self}'"


class _Forward(logging.Handler):
    """Forwards log records of libraries as structured events."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library message",
            logger=record.name,
            text=record.getMessage(),
            exc_info=record.exc_info,
        )
