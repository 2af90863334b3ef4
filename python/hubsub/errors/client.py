"""Errors of `hubsub.Client` and the command line."""

from hubsub.errors.base import HubSubError


class ClientError(HubSubError, code="client"):
    """Base class of the errors of `hubsub.Client` and the command line."""

    words = "the request failed"


class NotConnectedError(ClientError, code="not_connected", retryable=True):
    words = "no server can be reached"


class ProtocolError(ClientError, code="protocol"):
    words = "the server sent what is no RESP"


class ReplyError(ClientError, code="reply"):
    """An error reply that has no code of its own."""

    words = "the server answered with an error"


class NotRecoveredError(ClientError, code="not_recovered"):
    """The position belongs to another epoch of the room, or its records are gone."""

    resp = "NOTRECOVERED"
    words = "the position is not known here"
