"""The times at which a lease is renewed, in virtual time."""

from __future__ import annotations

import asyncio

from hubsub.coordination import lease as module
from hubsub.coordination.lease import Lease
from hubsub.errors import CoordinatorUnreachableError

from .cluster.played import play

TTL_S = 3.0


class Played(Lease):
    """A lease whose renewals give the set answers: a delay in s, or an error."""

    def __init__(self, *answers: float | Exception) -> None:
        self.answers = list(answers)
        self.asked_s: list[float] = []
        self.begun_s = module.time.monotonic()
        super().__init__(TTL_S, self.begun_s)

    async def _renew(self) -> bool:
        self.asked_s.append(round(module.time.monotonic() - self.begun_s, 6))
        answer = self.answers.pop(0) if self.answers else 0.0
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(answer)
        return True

    async def _end(self) -> None:
        pass


def test_a_lease_is_renewed_three_times_in_its_time_to_live_however_long_answers_take() -> None:
    async def test() -> None:
        lease = Played(0.5, 0.9, 0.5)
        await asyncio.sleep(4.5)
        assert lease.asked_s == [1.0, 2.0, 3.0, 4.0]
        assert lease.deadline == lease.begun_s + 4.0 + TTL_S
        await lease.release()

    play(test)


def test_a_renewal_that_is_never_answered_holds_up_no_later_one() -> None:
    async def test() -> None:
        lease = Played(3_600.0, 3_600.0)
        await asyncio.sleep(3.5)
        assert lease.asked_s == [1.0, 2.0, 3.0]
        assert lease.held and lease.deadline == lease.begun_s + 3.0 + TTL_S
        await lease.release()

    play(test)


def test_a_renewal_that_failed_is_asked_for_again_soon_and_an_old_answer_takes_no_time_away() -> None:
    async def test() -> None:
        lease = Played(CoordinatorUnreachableError(), 2.5, 0.0)
        await asyncio.sleep(4.0)
        assert lease.asked_s[:3] == [1.0, 1.25, 2.25]
        assert lease.deadline >= lease.begun_s + 2.25 + TTL_S
        await lease.release()

    play(test)
