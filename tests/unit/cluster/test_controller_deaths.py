"""The controller dies at one of its writes, repeatedly, in virtual time: see `played`."""

import asyncio

import hypothesis
import pytest

from hubsub.control.cluster.commits import CONTROLLER
from hubsub.coordination import Write
from hubsub.errors import CoordinatorUnknownError, CoordinatorUnreachableError
from unit.cluster.played import Cluster, play, until
from unit.cluster.test_cluster import HUBS, homes, leaders

IN_TIME_S = 2.0
"""Leader leases end after 1.06 s, those of a process that is proved dead at once."""

STEPS = range(0, 24, 7) if hypothesis.settings().max_examples <= 100 else range(28)
"""In turn: a change of the voters, proposals of hubs, hand-overs of hubs. The profile `soak` runs all steps.
"""


def test_who_was_beaten_in_elections_that_failed_does_not_wait_longer_for_the_next() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcd")
            await cluster.settle()
            coordinator, fails = cluster.coordinators["d"], 0
            commit = coordinator._commit

            async def fail(expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
                nonlocal fails
                if fails and any(write.key == CONTROLLER for write in writes):
                    fails -= 1
                    raise CoordinatorUnreachableError()
                return await commit(expect, writes)

            def is_beaten() -> bool:
                return not fails and cluster.controller() not in (None, "d")

            coordinator._commit = fail  # type: ignore[method-assign]
            for _ in range(4):
                controller, fails = cluster.controller(), 1
                assert controller is not None and controller != "d"
                await cluster.kill(controller)
                await until(is_beaten)
                await cluster.start(controller)
                await cluster.settle()
            for name in "abc":
                cluster.nodes[name]._controller._is_candidate = False
            controller, fails = cluster.controller(), 1
            assert controller is not None and controller != "d"
            await cluster.kill(controller)
            await until(lambda: cluster.controller() == "d", 0.5)
            assert not fails

    play(test)


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_controller_that_dies_amid_its_writes_is_failed_over(step: int, is_made: bool) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = cluster.controller()
            assert controller is not None
            coordinator, left, dies = cluster.coordinators[controller], step, asyncio.Event()
            commit = coordinator._commit

            async def count(expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
                nonlocal left
                left -= 1
                if left >= 0:
                    return await commit(expect, writes)
                if left == -1 and is_made:
                    await commit(expect, writes)
                dies.set()
                while not coordinator.cut:
                    await asyncio.sleep(0.01)
                raise CoordinatorUnknownError()

            coordinator._commit = count  # type: ignore[method-assign]
            await cluster.start("d")
            await until(dies.is_set)
            await cluster.kill(controller)
            others = set("abcd") - {controller}
            await until(
                lambda: len(cluster.led()) == HUBS and set(cluster.led().values()) <= others, IN_TIME_S
            )
            await cluster.settle()
            assert leaders(cluster) == homes("".join(others))

    play(test)
