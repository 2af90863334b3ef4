"""Errors of the REST API."""

from hubsub.errors.base import HubSubError


class BadRequestError(HubSubError, code="bad_request", status=400):
    words = "the request cannot be read"


class NotFoundError(HubSubError, code="not_found", status=404):
    words = "there is nothing at this path"


class MethodNotAllowedError(HubSubError, code="method_not_allowed", status=405):
    words = "this path does not take this method"


class NoSuchClientError(HubSubError, code="no_such_client", status=404):
    words = "no such client"


class NoSuchSessionError(HubSubError, code="no_such_session", status=404):
    words = "no such session: none outlives its connection under this client id"


class NoSuchDeviceError(HubSubError, code="no_such_device", status=404):
    words = "no such device: it has said nothing, and is not connected"


class NoDevicesError(HubSubError, code="no_devices", status=404):
    """No class defines how topics name a device."""

    words = "no class has devices"
    advice = 'give one a template, such as device = "devices/{device}/#"'


class ActionsNotKeptError(HubSubError, code="actions_not_kept", status=409):
    """Actions would be lost before an absent device returns, or could not be distinguished."""

    words = "the class of these topics keeps no actions"


class NoSuchNodeError(HubSubError, code="no_such_node", status=404):
    words = "no such node"


class NodesUnreachableError(HubSubError, code="nodes_unreachable", status=503, retryable=True):
    """The requested data may be on nodes that do not answer."""

    words = "nodes of the cluster do not answer"
    advice = "GET /v1/cluster shows how they are"


class ElsewhereError(HubSubError, code="elsewhere", status=307, retryable=True):
    """Another node has the data; the client is redirected to it.

    Args:
        what: As in `HubSubError`.
        value: As in `HubSubError`.
        hint: As in `HubSubError`.
        location: URL at that node; None if unknown.
    """

    words = "another node has it"

    def __init__(
        self,
        what: str | None = None,
        value: object = None,
        hint: str | None = None,
        *,
        location: str | None = None,
    ) -> None:
        super().__init__(what, value, hint)
        self.location = location


class NoSuchHubError(HubSubError, code="no_such_hub", status=404):
    words = "no such hub"


class NoSuchQueryError(HubSubError, code="no_such_query", status=404):
    words = "no such query"


class NoSuchConsumerError(HubSubError, code="no_such_consumer", status=404):
    words = "no such consumer"


class NoSuchRetainedError(HubSubError, code="no_such_retained_message", status=404):
    words = "the topic keeps no message"


class NoSuchClassError(HubSubError, code="no_such_class", status=404):
    words = "no such class"


class OtherLogError(HubSubError, code="other_log", status=409):
    """The node has another log than the reader expects, though it may have the same hubs."""

    words = "this node serves another log"


class BodyTooLargeError(HubSubError, code="body_too_large", status=413):
    words = "the body is longer than http_body_bytes_max"


class IdempotencyMismatchError(HubSubError, code="idempotency_mismatch", status=422):
    words = "this Idempotency-Key came with another request before"


class TooBusyError(HubSubError, code="too_busy", status=503, retryable=True):
    words = "too many requests wait already"
