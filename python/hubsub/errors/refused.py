"""Refusals of the data plane. `scripts/tables.py` writes the Rust enum `ErrorCode` from these classes."""

from typing import Any, ClassVar

from hubsub.errors.base import HubSubError


class Refused(HubSubError, code="refused", status=400):
    """Base class of the data plane's refusals."""

    words = "the node refused the request"
    prefix: ClassVar[str] = "ERR"
    """First word of the Redis error line; `words` are the rest."""
    mqtt_reason: ClassVar[int] = 0x80
    """Reason code of MQTT 5.0 in the reply to a publish."""
    settings: ClassVar[str | None] = None
    """The settings that raise the limit of this error, for a hint in the Redis error line."""

    def __init_subclass__(cls, *, mqtt_reason: int | None = None, **properties: Any) -> None:
        super().__init_subclass__(**properties)
        cls.mqtt_reason = mqtt_reason or cls.mqtt_reason
        cls.resp = f"{cls.prefix} {cls.words}"


class TopicLengthError(Refused, code="topic_length", mqtt_reason=0x90):
    words = "topic length is out of range"
    settings = "topic_bytes_max"


class PayloadLengthError(Refused, code="payload_length", status=413, mqtt_reason=0x83):
    words = "payload is longer than its room allows"
    settings = "payload_bytes_max of the class"


class TooManyRoomsError(Refused, code="too_many_rooms", status=503, retryable=True, mqtt_reason=0x97):
    words = "max number of rooms reached"
    settings = (
        "rooms_max, room_names_bytes_max, in a cluster also placed_rooms_class_max, room_records_bytes_max"
    )


class RoomCreationRateError(Refused, code="room_creation_rate", status=429, retryable=True, mqtt_reason=0x97):
    words = "too many new rooms, try again later"
    settings = "room_creations_per_second_max"


class PublishRateError(Refused, code="publish_rate", status=429, retryable=True, mqtt_reason=0x97):
    words = "max publishes per minute reached"
    settings = "publishes_per_minute_max"


class TooManySubscriptionsError(Refused, code="too_many_subscriptions", status=429, mqtt_reason=0x97):
    words = "max number of subscriptions of this client reached"
    settings = "subscriptions_per_client_max, patterns_per_client_max"


class SubscriptionBytesError(
    Refused, code="subscription_bytes", status=429, retryable=True, mqtt_reason=0x97
):
    words = "max bytes of names of subscriptions reached"
    settings = "subscription_bytes_per_client_max, subscription_bytes_shard_max"


class NotAllowedError(Refused, code="not_allowed", status=403, mqtt_reason=0x87):
    words = "this user has no permissions for this"
    prefix = "NOPERM"


class NoSuchRoomError(Refused, code="no_such_room", status=404):
    words = "no such room"


class RoomInUseError(Refused, code="room_in_use", status=409, retryable=True):
    words = "room has subscribers"


class StoppingError(Refused, code="stopping", status=503, retryable=True):
    words = "server is stopping"


class TimedOutError(Refused, code="timed_out", status=504, retryable=True):
    words = "request timed out, its outcome is unknown"


class DiskFullError(Refused, code="disk_full", status=507, retryable=True, mqtt_reason=0x97):
    words = "the disk is full or a file cannot be opened, the message was not stored"


class LogFailedError(Refused, code="log_failed", status=503):
    words = "the log has failed, the outcome is unknown"


class QuarantinedError(Refused, code="quarantined", status=503):
    words = "the log of this room is damaged and quarantined"
    advice = "end the node, then `hubsub log verify` says where and `hubsub log repair` what can be kept"


class NotLoggedError(Refused, code="not_logged"):
    words = "a producer's records need a replicated or durable class"


class SequenceTooOldError(Refused, code="sequence_too_old", status=409):
    words = "the sequence is older than the window, its outcome is unknown"


class SequencePassedError(Refused, code="sequence_passed", status=409):
    words = "a later sequence came before, the message was not stored"


class SequenceReusedError(Refused, code="sequence_reused", status=422):
    words = "the sequence was another message, this one was not stored"


class SequenceAheadError(Refused, code="sequence_ahead", status=409, retryable=True):
    words = "the sequence before it is not stored, and neither was the message"


class OffsetsLostError(Refused, code="offsets_lost", status=410):
    """Records that a reader of a hub's log needs are gone.

    Args:
        what: As in `HubSubError`.
        value: As in `HubSubError`.
        hint: As in `HubSubError`.
        hub: Name of the hub.
        first: The first missing offset.
        end: The first existing offset after the gap.
    """

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


class OffsetUnknownError(Refused, code="offset_unknown", status=416):
    words = "the offset is not committed"


class TooManyStreamsError(Refused, code="too_many_streams", status=503, retryable=True):
    words = "max number of streams of records reached"
    settings = "log_streams_max"


class NotLinkedError(Refused, code="not_linked", status=503, retryable=True):
    words = "there is no link to that node"


class LinkFullError(Refused, code="link_full", status=503, retryable=True, mqtt_reason=0x97):
    words = "too much waits for that node"


class LinkLostError(Refused, code="link_lost", status=502):
    """The request may have been carried out."""

    words = "the link to that node ended, the outcome is unknown"


class HubClosedError(Refused, code="hub_closed", status=503, retryable=True):
    words = "the hub of this room is not open here, try again later"


class HubDiffersError(Refused, code="hub_differs", status=409):
    words = "another hub has this id or place"


class ClassRemovedError(Refused, code="class_removed", status=409, mqtt_reason=0x83):
    words = "the class of this room was removed, it gets no new rooms"


class TooManyRetainedError(Refused, code="too_many_retained", status=429, retryable=True, mqtt_reason=0x97):
    words = "max number or bytes of retained messages reached"
    settings = "retained_messages_max, retained_bytes_max"


class TooManyGroupsError(Refused, code="too_many_groups", status=429, retryable=True, mqtt_reason=0x97):
    words = "max number of groups that share messages reached"
    settings = "groups_max"


class TooManyPatternsError(Refused, code="too_many_patterns", status=429, retryable=True, mqtt_reason=0x97):
    words = "max number, bytes or work of patterns reached"
    settings = "patterns_max, patterns_bytes_max, patterns_search_max"


class PatternLengthError(Refused, code="pattern_length", status=400, mqtt_reason=0x97):
    words = "pattern length is out of range"
    settings = "pattern_bytes_max"


class TooManyMembersError(Refused, code="too_many_members", status=429, retryable=True, mqtt_reason=0x97):
    words = "max members of the node reached"
    settings = "presence_members_max"


class TooManyTracesError(Refused, code="too_many_traces", status=429, retryable=True):
    words = "max traces of a shard reached"
    settings = "traces_max"


class MemberLengthError(Refused, code="member_length", status=413):
    words = "key and meta of the member are too long"
    settings = "presence_member_bytes_max"
