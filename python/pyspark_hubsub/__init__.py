"""Where Spark finds the source by itself: it looks for `DefaultSource` in each module named `pyspark_…`."""

from hubsub.pipeline.source import HubSubSource as DefaultSource

__all__ = ["DefaultSource"]
