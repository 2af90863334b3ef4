"""Parses path, query and body, with the errors of each."""

import asyncio
import contextlib
import re
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request

from hubsub.api.routes import POSITION
from hubsub.api.state import State
from hubsub.config import RESERVED
from hubsub.errors import BadRequestError, BodyTooLargeError, TopicLengthError
from hubsub.names import OWN_BYTES_MAX, bytes_of

T = TypeVar("T")

_POSITION = re.compile(POSITION)


def path_name(request: Request, key: str) -> bytes:
    """A percent-encoded name in the path, as bytes."""
    return unquote_to_bytes(request.path_params[key])


def check_length(room: bytes, most: int) -> None:
    """Raises `TopicLengthError` if a room's name is empty or too long.

    Args:
        room: The name.
        most: Longest client name in bytes. An internal name may be `OWN_BYTES_MAX` longer, as it embeds
            another name.
    """
    if not 0 < len(room) <= (most + OWN_BYTES_MAX if room.startswith(RESERVED.encode()) else most):
        raise TopicLengthError(value=len(room), hint=f"1 to {most} bytes")


def path_id(request: Request, key: str) -> int:
    text = request.path_params[key]
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) >= 2**64:
        raise BadRequestError(f"{key} must be a number of 64 bits", text)
    return int(text)


def number(request: Request, key: str, default: int, high: int, low: int = 1) -> int:
    """A number from the query. Raises BadRequestError if it is no number.

    Args:
        request: The request.
        key: Name of the parameter.
        default: Value if the parameter is missing.
        high: Upper bound; larger values are clamped to it, since pages are bounded anyway.
        low: Lower bound, default 1; smaller values raise.
    """
    text = request.query_params.get(key)
    if text is None:
        return min(default, high)
    if not (text.isascii() and text.isdigit()) or not low <= (value := int(text[:19])):
        raise BadRequestError(f"{key} must be a number from {low}", text)
    return min(value, high)


def name(request: Request, key: str) -> bytes | None:
    """A name from the query, in the form of `hubsub.names`."""
    text = request.query_params.get(key)
    return None if text is None else bytes_of(text)


def names(request: Request, key: str) -> list[bytes]:
    """All names that the query gives for a key."""
    return [bytes_of(text) for text in request.query_params.getlist(key)]


def optional_number(request: Request, key: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
    """A number from the query; None if it is missing.

    Args:
        request: The request.
        key: Name of the parameter.
        low: Lower bound, default 0.
        high: Upper bound, default 2^63 - 1.

    Raises:
        BadRequestError: it is no number from `low` to `high`.
    """
    text = request.query_params.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or not low <= int(text) <= high:
        raise BadRequestError(f"{key} must be a number from {low} to {high}", text)
    return int(text)


def flag(request: Request, key: str) -> bool:
    text = request.query_params.get(key, "false")
    if text not in ("true", "false", "1", "0"):
        raise BadRequestError(f"{key} must be true or false", text)
    return text in ("true", "1")


def position(text: str) -> tuple[int, int]:
    """Parses `EPOCH-SEQ` into its two numbers."""
    if _POSITION.fullmatch(text) is None:
        raise BadRequestError("a position has the form EPOCH-SEQ", text[:100], "take it from a record")
    epoch, _, seq = text.partition("-")
    return int(epoch), int(seq)


async def body(state: State, request: Request) -> bytes:
    """Reads the whole body. It counts against `http_bodies_bytes_max` until `let_go`.

    Raises:
        BodyTooLargeError: it is longer than `http_body_bytes_max`; the rest is not read.
        TooBusyError: all requests together would exceed the limit.
    """
    limit = state.limits["http_body_bytes_max"]
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        state.bodies_refused += 1
        raise BodyTooLargeError(value=f"{announced} > {limit}")
    data = bytearray()
    # The local handler reads a body that was already counted when it was read for the other nodes.
    is_held = "body_bytes" in request.scope
    try:
        async with asyncio.timeout(state.limits["request_timeout_ms"] / 1_000):
            async for chunk in request.stream():
                if not is_held:
                    _hold(state, request, len(chunk))
                data += chunk
                if len(data) > limit:
                    state.bodies_refused += 1
                    raise BodyTooLargeError(value=f"more than {limit}")
    except TimeoutError:
        raise BadRequestError("the body did not come in time", f"{len(data)} bytes came") from None
    return bytes(data)


def _hold(state: State, request: Request, size: int) -> None:
    state.hold(size)
    request.scope["body_bytes"] = request.scope.get("body_bytes", 0) + size


def let_go(state: State, request: Request) -> None:
    """Releases a finished request's body."""
    state.hold(-request.scope.pop("body_bytes", 0))


def _whole(value: Any) -> Any:
    """Converts floats without a fraction to integers."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {key: _whole(item) for key, item in value.items()}
    return value


def decode(data: bytes, kind: Any) -> Any:
    """Decodes JSON to a type of the schema; accepts 60.0 as an integer."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        with contextlib.suppress(msgspec.ValidationError, RecursionError):
            return msgspec.convert(_whole(msgspec.json.decode(data)), kind, str_keys=True)
        raise BadRequestError("the body does not fit the schema", error, "see /v1/openapi.json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError("the body is no JSON", error) from None
