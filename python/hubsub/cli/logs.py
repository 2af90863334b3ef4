"""Logs of a node: structured events on stderr, as text for people or JSON lines for machines."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up(level: str, form: str) -> None:
    """Sets the process's log up; called again it takes over a new level.

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
    ]
    if not as_text:
        processors += [structlog.processors.format_exc_info, _head_first]
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
    """The same three keys at the start of every line."""
    head = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    return head | dict(event)


class _Forward(logging.Handler):
    """What libraries log, as events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library message",
            logger=record.name,
            text=record.getMessage(),
            exc_info=record.exc_info,
        )
