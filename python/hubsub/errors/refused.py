"""Refusals of the data plane; code, resp and retryable are the core's own."""

from hubsub.errors.base import HubSubError


class Refused(HubSubError):
    """Base class of the data plane's refusals."""

    code = "refused"
    status = 400
    words = "the node refused the request"


class TopicLengthError(Refused):
    code = "topic_length"
    resp = "ERR topic length is out of range"
    words = "topic length is out of range"


class PayloadLengthError(Refused):
    code = "payload_length"
    status = 413
    resp = "ERR payload is longer than its room allows"
    words = "payload is longer than its room allows"


class TooManyRoomsError(Refused):
    code = "too_many_rooms"
    status = 503
    resp = "ERR max number of rooms reached"
    retryable = True
    words = "max number of rooms reached"


class RoomCreationRateError(Refused):
    code = "room_creation_rate"
    status = 429
    resp = "ERR too many new rooms, try again later"
    retryable = True
    words = "too many new rooms, try again later"


class PublishRateError(Refused):
    code = "publish_rate"
    status = 429
    resp = "ERR max publishes per minute reached"
    retryable = True
    words = "max publishes per minute reached"


class TooManySubscriptionsError(Refused):
    code = "too_many_subscriptions"
    status = 429
    resp = "ERR max number of subscriptions of this client reached"
    words = "max number of subscriptions of this client reached"


class SubscriptionBytesError(Refused):
    code = "subscription_bytes"
    status = 429
    resp = "ERR max bytes of names of subscriptions reached"
    retryable = True
    words = "max bytes of names of subscriptions reached"


class NotAllowedError(Refused):
    code = "not_allowed"
    status = 403
    resp = "NOPERM this user has no permissions for this"
    words = "this user has no permissions for this"


class NoSuchRoomError(Refused):
    code = "no_such_room"
    status = 404
    resp = "ERR no such room"
    words = "no such room"


class RoomInUseError(Refused):
    code = "room_in_use"
    status = 409
    resp = "ERR room has subscribers"
    retryable = True
    words = "room has subscribers"


class StoppingError(Refused):
    code = "stopping"
    status = 503
    resp = "ERR server is stopping"
    retryable = True
    words = "server is stopping"


class TimedOutError(Refused):
    code = "timed_out"
    status = 504
    resp = "ERR request timed out, its outcome is unknown"
    retryable = True
    words = "request timed out, its outcome is unknown"


class DiskFullError(Refused):
    code = "disk_full"
    status = 507
    resp = "ERR the disk is full or a file cannot be opened, the message was not stored"
    retryable = True
    words = "the disk is full or a file cannot be opened, the message was not stored"


class LogFailedError(Refused):
    code = "log_failed"
    status = 503
    resp = "ERR the log has failed, the outcome is unknown"
    words = "the log has failed, the outcome is unknown"


class QuarantinedError(Refused):
    code = "quarantined"
    status = 503
    resp = "ERR the log of this room is damaged and quarantined"
    words = "the log of this room is damaged and quarantined"
    advice = "end the node, then `hubsub log verify` says where and `hubsub log repair` what can be kept"


class NotLoggedError(Refused):
    code = "not_logged"
    resp = "ERR a producer's records need a replicated or durable class"
    words = "a producer's records need a replicated or durable class"


class SequenceTooOldError(Refused):
    code = "sequence_too_old"
    status = 409
    resp = "ERR the sequence is older than the window, its outcome is unknown"
    words = "the sequence is older than the window, its outcome is unknown"


class SequencePassedError(Refused):
    code = "sequence_passed"
    status = 409
    resp = "ERR a later sequence came before, the message was not stored"
    words = "a later sequence came before, the message was not stored"


class SequenceReusedError(Refused):
    code = "sequence_reused"
    status = 422
    resp = "ERR the sequence was another message, this one was not stored"
    words = "the sequence was another message, this one was not stored"


class SequenceAheadError(Refused):
    code = "sequence_ahead"
    status = 409
    resp = "ERR the sequence before it is not stored, and neither was the message"
    words = "the sequence before it is not stored, and neither was the message"
    retryable = True


class OffsetsLostError(Refused):
    """Records that a reader of a hub's log needs are gone.

    Args:
        what: As in `HubSubError`.
        value: As in `HubSubError`.
        hint: As in `HubSubError`.
        hub: Name of the hub.
        first: The first missing offset.
        end: The first existing offset after the gap.
    """

    code = "offsets_lost"
    status = 410
    resp = "ERR records are not there any more"
    words = "records are not there any more"

    def __init__(
        self,
        what: str | None = None,
        value: object = None,
        hint: str | None = None,
        *,
        hub: str | int | None = None,
        first: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(what, value, hint)
        self.hub = hub
        self.first = first
        self.end = end


class OffsetUnknownError(Refused):
    code = "offset_unknown"
    status = 416
    resp = "ERR the offset is not committed"
    words = "the offset is not committed"


class TooManyStreamsError(Refused):
    code = "too_many_streams"
    status = 503
    resp = "ERR max number of streams of records reached"
    retryable = True
    words = "max number of streams of records reached"


class NotLinkedError(Refused):
    code = "not_linked"
    status = 503
    resp = "ERR there is no link to that node"
    retryable = True
    words = "there is no link to that node"


class LinkFullError(Refused):
    code = "link_full"
    status = 503
    resp = "ERR too much waits for that node"
    retryable = True
    words = "too much waits for that node"


class LinkLostError(Refused):
    """The request may have been carried out."""

    code = "link_lost"
    status = 502
    resp = "ERR the link to that node ended, the outcome is unknown"
    words = "the link to that node ended, the outcome is unknown"


class HubClosedError(Refused):
    code = "hub_closed"
    status = 503
    resp = "ERR the hub of this room is not open here, try again later"
    retryable = True
    words = "the hub of this room is not open here, try again later"


class ClassRemovedError(Refused):
    code = "class_removed"
    status = 409
    resp = "ERR the class of this room was removed, it gets no new rooms"
    words = "the class of this room was removed, it gets no new rooms"


class TooManyRetainedError(Refused):
    code = "too_many_retained"
    status = 429
    resp = "ERR max number or bytes of retained messages reached"
    retryable = True
    words = "max number or bytes of retained messages reached"


class TooManyGroupsError(Refused):
    code = "too_many_groups"
    status = 429
    resp = "ERR max number of groups that share messages reached"
    retryable = True
    words = "max number of groups that share messages reached"


class TooManyPatternsError(Refused):
    code = "too_many_patterns"
    status = 429
    resp = "ERR max number, bytes or work of patterns reached"
    retryable = True
    words = "max number, bytes or work of patterns reached"


class PatternLengthError(Refused):
    code = "pattern_length"
    status = 400
    resp = "ERR pattern length is out of range"
    words = "pattern length is out of range"


class TooManyMembersError(Refused):
    code = "too_many_members"
    status = 429
    resp = "ERR max members of the node reached"
    retryable = True
    words = "max members of the node reached"


class MemberLengthError(Refused):
    code = "member_length"
    status = 413
    resp = "ERR key and meta of the member are too long"
    words = "key and meta of the member are too long"


class HubDiffersError(Refused):
    code = "hub_differs"
    status = 409
    resp = "ERR another hub has this id or place"
    words = "another hub has this id or place"
