"""Builds responses: JSON bodies and JSON errors."""

import msgspec
from starlette.responses import Response

from hubsub.api.schema import ErrorBody
from hubsub.errors import ElsewhereError, HubSubError, OffsetsLostError

_ENCODER = msgspec.json.Encoder()


def json_answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a JSON body.

    Args:
        body: Anything msgspec can encode.
        status: HTTP status, default 200.
        headers: Added to the response.

    Returns:
        A response of type `application/json`.
    """
    return Response(_ENCODER.encode(body), status, headers, media_type="application/json")


def json_bytes(body: object) -> bytes:
    return _ENCODER.encode(body)


def error_answer(error: HubSubError, headers: dict[str, str] | None = None) -> Response:
    """`{code, message, hint}` with the status of the error's class."""
    body = ErrorBody(code=error.code, message=error.message, hint=error.hint)
    if isinstance(error, OffsetsLostError):
        body.hub = msgspec.UNSET if error.hub is None else str(error.hub)
        body.first = msgspec.UNSET if error.first is None else error.first
        body.end = msgspec.UNSET if error.end is None else error.end
    own = {"retry-after": "1"} if error.retryable else {}
    if isinstance(error, ElsewhereError) and error.location is not None:
        own = {"location": error.location}
    return Response(_ENCODER.encode(body), error.status, own | (headers or {}), media_type="application/json")
