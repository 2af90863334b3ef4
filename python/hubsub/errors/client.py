"""What `hubsub.Client` and the command line meet."""

from hubsub.errors.base import HubSubError


class ClientError(HubSubError):
    """What `hubsub.Client` and the command line meet."""

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
    """The position is of another life of the room, or its records are gone."""

    code = "not_recovered"
    resp = "NOTRECOVERED"
    words = "the position is not known here"
