"""Sessions of users in rooms, from their events there: join, leave, message, action."""

from hubsub.pipeline.sessions.batch import sessions
from hubsub.pipeline.sessions.concurrency import concurrency
from hubsub.pipeline.sessions.rules import FIELDS, TIMEOUT, moves, unknown_events
from hubsub.pipeline.sessions.stream import streamed

__all__ = ["FIELDS", "TIMEOUT", "concurrency", "moves", "sessions", "streamed", "unknown_events"]
