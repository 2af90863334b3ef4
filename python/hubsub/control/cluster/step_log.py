"""Logs hub changes of the controller: disruptive ones at once, orderly moves in one line per second, however
many hubs move.

Invariant: every step is logged once; those of a controller term at the latest when it ends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from hubsub.control.cluster.failover import Step

HUBS_LOGGED: Final = 8
"""Maximum number of hubs named in a log line."""

MOVES_S: Final = 1.0
"""Period of the moves in one log line."""

MOVES: Final = frozenset({"propose", "withdraw", "has records", "gave up", "members"})
"""Steps of an orderly move between nodes: the leader gave the hub up because it was asked to."""

log = structlog.get_logger("hubsub.cluster")


class StepLog:
    """Collects and logs steps.

    Args:
        clock: Monotonic, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moves: list[Step] = []
        self._since_s = 0.0
        """When the first of the collected moves was added."""

    def add(self, steps: Sequence[Step]) -> None:
        """Logs or collects steps whose commits are about to be sent."""
        others = [step for step in steps if step.why not in MOVES]
        for why, count in Counter(step.why for step in others).items():
            hubs = [step.hub for step in others if step.why == why]
            log.info("hubs change", why=why, count=count, first=hubs[:HUBS_LOGGED])
        if len(others) < len(steps):
            if not self._moves:
                self._since_s = self._clock()
            self._moves += [step for step in steps if step.why in MOVES]

    def flush(self, is_end: bool = False) -> None:
        """Logs the collected moves if their period is over, or at the end of the controller term. Called every turn."""
        if not self._moves or not (is_end or self._clock() - self._since_s >= MOVES_S):
            return
        moves, self._moves = self._moves, []
        moved = [step for step in moves if step.why in ("gave up", "members")]
        stay = sum(step.why == "has records" for step in moves)
        to = Counter(step.after.leader for step in moved)
        log.info(
            "hubs are dealt",
            moved=len(moved),
            to=", ".join(f"{node} ({count})" for node, count in sorted(to.items())),
            stay_with_records=stay,
            asked_for=sum(step.why == "propose" for step in moves),
            taken_back=sum(step.why == "withdraw" for step in moves),
        )
