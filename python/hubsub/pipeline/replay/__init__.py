"""Replay: archived records back into rooms, each room in its order."""

from hubsub.pipeline.replay.plan import Bounds, Span, between, counts, outgoing, replayable, spans

__all__ = ["Bounds", "Span", "between", "counts", "outgoing", "replayable", "spans"]
