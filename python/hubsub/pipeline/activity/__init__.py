"""Activity of rooms: traffic per window of time, and missing records."""

from hubsub.pipeline.activity.gaps import holes, missing
from hubsub.pipeline.activity.windows import activity, messages

__all__ = ["activity", "holes", "messages", "missing"]
