"""Every error that HubSub raises or returns, as one tree with stable codes.

A class has the properties of its code: HTTP status, Redis error line, whether the same request may succeed
later. `BY_CODE` is that table; a boundary test compares it with the core's. The text for people has three
parts: what happened, the value after a colon, then a line `hint:`.

Each module has the classes of one part of the system; all are exported here.
"""

import re

from hubsub.errors.base import *
from hubsub.errors.client import *
from hubsub.errors.cluster import *
from hubsub.errors.coordinator import *
from hubsub.errors.http import *
from hubsub.errors.pipeline import *
from hubsub.errors.refused import *
from hubsub.errors.stages import *
from hubsub.errors.start import *


def _tree(root: type[HubSubError]) -> list[type[HubSubError]]:
    return [root, *(c for child in root.__subclasses__() for c in _tree(child))]


BY_CODE: dict[str, type[HubSubError]] = {cls.code: cls for cls in _tree(HubSubError)}
"""Stable code to class: the whole table."""

_BY_RESP: dict[str, type[HubSubError]] = {cls.resp: cls for cls in BY_CODE.values() if cls.resp is not None}


def refusal(
    code: str, message: str, value: object = None, missing: tuple[int, int] | None = None
) -> HubSubError:
    """The error for a code of the data plane.

    Args:
        code: A key of `BY_CODE`.
        message: Used if the code is unknown here.
        value: Shown after a colon.
        missing: First missing offset, and the first one after the gap.
    """
    cls = BY_CODE.get(code)
    if cls is OffsetsLostError and missing is not None:
        first, end = missing
        return OffsetsLostError(value=f"{first} to {end - 1}", first=first, end=end)
    return Refused(message, value) if cls is None else cls(value=value or None)


_SETTINGS = re.compile(r"(in a cluster also )?[a-z]+(_[a-z]+)+( of the class)?")
"""One item of the hints that the core writes: `ErrorCode::settings`, and errors of its listeners."""


def _without_hint(line: str) -> tuple[str, str]:
    """An error line and its hint. A line may quote what a client sent, so a hint names settings and nothing else."""
    words, _, hint = line.rpartition("; hint: ")
    if words and all(_SETTINGS.fullmatch(item) for item in hint.split(", ")):
        return words, hint
    return line, ""


def from_reply(line: str) -> HubSubError:
    """The error of a Redis error line, without its `-`."""
    words, hint = _without_hint(line)
    cls = _BY_RESP.get(words)
    if cls is not None:
        return cls(hint=hint or None)
    prefix, _, rest = words.partition(" ")
    return (
        _BY_RESP[prefix](rest, hint=hint or None)
        if prefix in _BY_RESP
        else ReplyError(words, hint=hint or None)
    )
