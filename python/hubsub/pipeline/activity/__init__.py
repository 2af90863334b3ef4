"""Activity of rooms: what was said in each window of time, and whether anything is missing."""

from hubsub.pipeline.activity.gaps import holes, missing
from hubsub.pipeline.activity.windows import activity, messages

__all__ = ["activity", "holes", "messages", "missing"]
