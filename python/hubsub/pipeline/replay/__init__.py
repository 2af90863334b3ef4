"""Replay: archived records back into rooms, each room in its order."""

from hubsub.pipeline.replay.plan import paced, part, steady

__all__ = ["paced", "part", "steady"]
