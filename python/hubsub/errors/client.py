"""Errors of `hubsub.Client` and the command line."""

from hubsub.errors.base import HubSubError


class ClientError(HubSubError):
    """Base class of the errors of `hubsub.Client` and the command line."""

    code = "client"
    words = "the request failed"


class NotConnectedError(ClientError):
    code = "not_connected"
    retryable = True
    words = "no server can be reached"


class ProtocolError(ClientError):
    code = "protocol"
    words = "the server sent what is no RESP"


class ReplyError(ClientError):
    """An error reply that has no code of its own."""

    code = "reply"
    words = "the server answered with an error"


class NotRecoveredError(ClientError):
    """The position belongs to another epoch of the room, or its records are gone."""

    code = "not_recovered"
    resp = "NOTRECOVERED"
    words = "the position is not known here"
