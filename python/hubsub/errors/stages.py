"""Errors of stages: the rows of a batch before they are published."""

from hubsub.errors.base import HubSubError


class NoStagesError(HubSubError, code="no_stages", status=409):
    words = "this node keeps no stages"


class StageExistsError(HubSubError, code="stage_exists", status=409):
    words = "there is a stage of this name"


class StageCommittedError(HubSubError, code="stage_committed", status=409):
    words = "the stage is committed, and its rows will be published"


class StagesMissingError(HubSubError, code="stages_missing", status=409):
    """Stages that a batch names are missing or incomplete. Nothing of the batch was published."""

    words = "stages are not there, or not whole"


class StageLostError(HubSubError, code="stage_lost", status=500):
    """Rows of a committed batch were lost before they were published."""

    words = "rows of a committed batch are lost"


class BatchPassedError(HubSubError, code="batch_passed", status=409):
    """A later batch of the query was committed already."""

    words = "a later batch of this query is committed"


class BatchGivenUpError(HubSubError, code="batch_given_up", status=409):
    """The batch was blocked, and an operator gave up its remaining rows."""

    words = "the batch was given up"
    advice = "its other rows will not be published; the next batch goes on"


class BatchNotBlockedError(HubSubError, code="batch_not_blocked", status=409):
    """Only a batch that is committed, not published, and not being moved can be given up."""

    words = "the batch is not blocked"
    advice = "GET /v1/queries lists those that are"


class BatchMovingError(HubSubError, code="batch_moving", status=503, retryable=True):
    """The batch is committed but not yet published; the same commit waits for it again."""

    words = "the batch is committed and still being published"


class StageTooLargeError(HubSubError, code="stage_too_large", status=413):
    words = "the stage is longer than http_stage_bytes_max"


class BadRowsError(HubSubError, code="bad_rows", status=422):
    words = "the rows cannot be read"


class TooManyStagesError(HubSubError, code="too_many_stages", status=503, retryable=True):
    words = "too many stages wait for their commit"


class StagesFullError(HubSubError, code="stages_full", status=503, retryable=True):
    words = "batches that are being published hold all the space for stages"
