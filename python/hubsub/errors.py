"""Every error that HubSub raises or answers, as one tree with stable codes.

A class carries the row of its code: HTTP status, Redis error line, whether the
same request may succeed later. `BY_CODE` is that table; a boundary test holds
it against the core's. What a person reads has three parts: what happened, the
value after a colon, then a line `hint:`.
"""

import re
from collections.abc import Sequence
from typing import ClassVar, NamedTuple


def without_secrets(url: str) -> str:
    """A URL as an error may show it: who logs in is left out, also where it is no proper URL."""
    return re.sub(r"^([^/:@]*://)?.*@", r"\1***@", url, flags=re.DOTALL)


class HubSubError(Exception):
    """What every other error is.

    Args:
        what: What happened, a sentence without its full stop; default: the class's own words.
        value: The value it happened with; shown after a colon.
        hint: What to do about it.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    resp: ClassVar[str | None] = None
    """The whole Redis error line, where the data plane answers one."""
    retryable: ClassVar[bool] = False
    words: ClassVar[str] = "something went wrong inside"
    advice: ClassVar[str | None] = None
    """The hint, where none is given."""

    def __init__(self, what: str | None = None, value: object = None, hint: str | None = None) -> None:
        self.what = what or self.words
        self.value = value
        self.hint = hint or self.advice
        super().__init__(self.what)

    @property
    def message(self) -> str:
        """What happened and with which value, in one line."""
        return self.what if self.value is None else f"{self.what}: {self.value}"

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


# -- what the data plane refuses; code, resp and retryable are the core's own --


class Refused(HubSubError):
    """The data plane said no."""

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
    resp = "ERR the disk is full, the message was not stored"
    retryable = True
    words = "the disk is full, the message was not stored"


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


class OffsetsLostError(Refused):
    """Records that a reader of a hub's log needs are gone.

    Args:
        hub: Name of the hub.
        first: The first offset that is missing.
        end: The first one behind it that is there.
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


# -- starting a node --


class Problem(NamedTuple):
    """One thing wrong with the configuration."""

    key: str
    value: object
    reason: str
    hint: str | None = None

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, str) and "://" in value:
            value = without_secrets(value)
        line = f"{self.key}: {self.reason}" + ("" if value is None else f": {value!r}")
        return line if self.hint is None else f"{line}\n  hint: {self.hint}"


class ConfigError(HubSubError):
    """The configuration cannot be used; all that is wrong with it, at once."""

    code = "config"
    status = 400
    words = "bad configuration"

    def __init__(self, problems: Sequence[Problem], file: object = None) -> None:
        super().__init__()
        self.problems = tuple(problems)
        self.file = file
        """The file that was read, if one was; flags and environment may be wrong all the same."""

    def __str__(self) -> str:
        of_file = "" if self.file is None else f" ({self.file})"
        head = f"{self.what}{of_file}, {len(self.problems)} to mend:"
        return "\n".join([head, *(str(p) for p in self.problems)])


class StartError(HubSubError):
    code = "start"
    words = "the node cannot start"


class DataDirectoryError(HubSubError):
    """A data directory that cannot be read or mended offline."""

    code = "data_directory"
    words = "the data directory cannot be used"


class NodeFailedError(HubSubError):
    code = "node_failed"
    words = "a shard of the node failed"


# -- HTTP --


class BadRequestError(HubSubError):
    code = "bad_request"
    status = 400
    words = "the request cannot be read"


class NotFoundError(HubSubError):
    code = "not_found"
    status = 404
    words = "there is nothing at this path"


class MethodNotAllowedError(HubSubError):
    code = "method_not_allowed"
    status = 405
    words = "this path does not take this method"


class NoSuchClientError(HubSubError):
    code = "no_such_client"
    status = 404
    words = "no such client"


class NoSuchNodeError(HubSubError):
    code = "no_such_node"
    status = 404
    words = "no such node"


class NoSuchHubError(HubSubError):
    code = "no_such_hub"
    status = 404
    words = "no such hub"


class NoSuchQueryError(HubSubError):
    code = "no_such_query"
    status = 404
    words = "no such query"


class NoSuchClassError(HubSubError):
    code = "no_such_class"
    status = 404
    words = "no such class"


class OtherLogError(HubSubError):
    """The node has another log than the reader means, though it may have the same hubs."""

    code = "other_log"
    status = 409
    words = "this node serves another log"


class BodyTooLargeError(HubSubError):
    code = "body_too_large"
    status = 413
    words = "the body is longer than http_body_bytes_max"


class IdempotencyMismatchError(HubSubError):
    code = "idempotency_mismatch"
    status = 422
    words = "this Idempotency-Key came with another request before"


class TooBusyError(HubSubError):
    code = "too_busy"
    status = 503
    retryable = True
    words = "too many requests wait already"


# -- stages: the rows of a batch, before they are published --


class NoStagesError(HubSubError):
    """The node keeps nothing, so it cannot keep a stage either."""

    code = "no_stages"
    status = 409
    words = "this node keeps no stages"


class StageExistsError(HubSubError):
    code = "stage_exists"
    status = 409
    words = "there is a stage of this name"


class StageCommittedError(HubSubError):
    code = "stage_committed"
    status = 409
    words = "the stage is committed, and its rows will be published"


class StagesMissingError(HubSubError):
    """Rows that a batch names are not there, or not all of them. Nothing of the batch was published."""

    code = "stages_missing"
    status = 409
    words = "stages are not there, or not whole"


class StageLostError(HubSubError):
    """Rows of a batch that is committed are gone before they were published."""

    code = "stage_lost"
    status = 500
    words = "rows of a committed batch are lost"


class BatchPassedError(HubSubError):
    """A later batch of the query was committed already."""

    code = "batch_passed"
    status = 409
    words = "a later batch of this query is committed"


class BatchMovingError(HubSubError):
    """The batch is committed and takes its time; the same commit waits for it again."""

    code = "batch_moving"
    status = 503
    retryable = True
    words = "the batch is committed and still being published"


class StageTooLargeError(HubSubError):
    code = "stage_too_large"
    status = 413
    words = "the stage is longer than http_stage_bytes_max"


class BadRowsError(HubSubError):
    code = "bad_rows"
    status = 422
    words = "the rows cannot be read"


class TooManyStagesError(HubSubError):
    code = "too_many_stages"
    status = 503
    retryable = True
    words = "too many stages wait for their commit"


class StagesFullError(HubSubError):
    code = "stages_full"
    status = 503
    retryable = True
    words = "batches that are being published hold all the space for stages"


# -- clients --


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


# -- the pipeline on Spark --


class PipelineError(HubSubError):
    """What the Spark source and the jobs meet on their own side."""

    code = "pipeline"
    words = "the pipeline cannot go on"


class OptionError(PipelineError):
    code = "option"
    status = 400
    words = "bad option"


class NoLogError(PipelineError):
    """All that was asked for is in memory only."""

    code = "no_log"
    status = 400
    words = "the rooms keep no log"


class StreamBrokenError(PipelineError):
    """A stream of records broke, and again at each attempt to go on."""

    code = "stream_broken"
    retryable = True
    words = "the stream of records broke off"


class SparkMissingError(PipelineError):
    code = "spark_missing"
    words = "Spark cannot be started"


class ArchiveMismatchError(PipelineError):
    """A batch and the archive do not belong together; nothing was committed."""

    code = "archive_mismatch"
    status = 409
    words = "the archive and the checkpoint do not belong together"


class ArchiveDamagedError(PipelineError):
    code = "archive_damaged"
    words = "the archive cannot be read"


def _tree(root: type[HubSubError]) -> list[type[HubSubError]]:
    return [root, *(c for child in root.__subclasses__() for c in _tree(child))]


BY_CODE: dict[str, type[HubSubError]] = {cls.code: cls for cls in _tree(HubSubError)}
"""Stable code to class: the whole table."""

_BY_RESP: dict[str, type[HubSubError]] = {cls.resp: cls for cls in BY_CODE.values() if cls.resp is not None}


def refusal(
    code: str, message: str, value: object = None, missing: tuple[int, int] | None = None
) -> HubSubError:
    """The error of a code that the data plane refused with.

    Args:
        code: Of `BY_CODE`.
        message: For a code that is unknown here.
        value: What it happened with.
        missing: The first offset that is not there, and the one behind the last.
    """
    cls = BY_CODE.get(code)
    if cls is OffsetsLostError and missing is not None:
        first, end = missing
        return OffsetsLostError(value=f"{first} to {end - 1}", first=first, end=end)
    return Refused(message, value) if cls is None else cls(value=value or None)


def from_reply(line: str) -> HubSubError:
    """The error of a Redis error line, without its `-`."""
    cls = _BY_RESP.get(line)
    if cls is not None:
        return cls()
    prefix, _, rest = line.partition(" ")
    return _BY_RESP[prefix](rest) if prefix in _BY_RESP else ReplyError(line)
