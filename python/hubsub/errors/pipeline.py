"""Errors of the pipeline on Spark."""

from hubsub.errors.base import HubSubError


class PipelineError(HubSubError):
    """Errors that the Spark source and the jobs raise themselves."""

    code = "pipeline"
    words = "the pipeline cannot go on"


class OptionError(PipelineError):
    code = "option"
    status = 400
    words = "bad option"


class NoLogError(PipelineError):
    """All requested rooms are in memory only."""

    code = "no_log"
    status = 400
    words = "the rooms keep no log"


class StreamBrokenError(PipelineError):
    """A stream of records broke, and again at each retry."""

    code = "stream_broken"
    retryable = True
    words = "the stream of records broke off"


class SparkMissingError(PipelineError):
    code = "spark_missing"
    words = "Spark cannot be started"


class ArchiveMismatchError(PipelineError):
    """A batch and the archive do not match; nothing was committed."""

    code = "archive_mismatch"
    status = 409
    words = "the archive and the checkpoint do not belong together"


class ArchiveDamagedError(PipelineError):
    code = "archive_damaged"
    words = "the archive cannot be read"
