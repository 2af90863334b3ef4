"""Errors of the pipeline on Spark."""

from hubsub.errors.base import HubSubError


class PipelineError(HubSubError, code="pipeline"):
    """Errors that the Spark source and the jobs raise themselves."""

    words = "the pipeline cannot go on"


class OptionError(PipelineError, code="option", status=400):
    words = "bad option"


class NoLogError(PipelineError, code="no_log", status=400):
    """All requested rooms are in memory only."""

    words = "the rooms keep no log"


class StreamBrokenError(PipelineError, code="stream_broken", retryable=True):
    """A stream of records broke, and again at each retry."""

    words = "the stream of records broke off"


class SparkMissingError(PipelineError, code="spark_missing"):
    words = "Spark cannot be started"


class ArchiveMismatchError(PipelineError, code="archive_mismatch", status=409):
    """A batch and the archive do not match; nothing was committed."""

    words = "the archive and the checkpoint do not belong together"


class ArchiveDamagedError(PipelineError, code="archive_damaged"):
    words = "the archive cannot be read"
