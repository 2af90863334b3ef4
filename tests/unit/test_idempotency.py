"""The window of stored answers."""

import asyncio
from typing import Any

import pytest

from hubsub.control.idempotency import Window
from hubsub.errors import HubSubError, IdempotencyMismatchError, TooBusyError


class Bench:
    """A window with a clock and limits that the test sets, and work that counts its calls."""

    def __init__(self, **limits: int) -> None:
        defaults = {"idempotency_keys_max": 100, "idempotency_bytes_max": 10_000, "idempotency_ms": 1_000}
        self.limits = defaults | limits
        self.now = 0.0
        self.runs = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.window = Window(lambda: self.limits, lambda: self.now)

    async def work(self) -> bytes:
        self.runs += 1
        await self.gate.wait()
        return b"answer %d" % self.runs

    async def ask(self, key: str = "k", request: bytes = b"r", scope: bytes = b"s") -> bytes:
        return await self.window.once(scope, key, request, self.work)


async def test_the_same_key_gets_the_same_answer_and_one_run() -> None:
    bench = Bench()
    assert [await bench.ask() for _ in range(3)] == [b"answer 1"] * 3
    assert bench.runs == 1 and bench.window.repeated == 2


async def test_a_repeat_during_the_work_waits_for_it() -> None:
    bench = Bench()
    bench.gate.clear()
    both = [asyncio.ensure_future(bench.ask()) for _ in range(2)]
    await asyncio.wait(both, timeout=0)
    bench.gate.set()
    assert await asyncio.gather(*both) == [b"answer 1"] * 2


async def test_a_caller_that_gave_up_finds_the_answer_later() -> None:
    bench = Bench()
    bench.gate.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.ask(), 0)
    first = asyncio.ensure_future(bench.ask())
    await asyncio.wait([first], timeout=0)
    bench.gate.set()
    assert await first == b"answer 1" and bench.runs == 1


async def test_the_same_key_of_another_scope_is_another_key() -> None:
    bench = Bench()
    assert await bench.ask() == b"answer 1"
    assert await bench.ask(scope=b"t") == b"answer 2"
    assert await bench.ask(scope=b"t", key="j") == b"answer 3"
    assert [await bench.ask(), await bench.ask(scope=b"t")] == [b"answer 1", b"answer 2"]
    assert len(bench.window) == 3


async def test_the_same_key_with_another_request_is_refused() -> None:
    bench = Bench()
    await bench.ask(request=b"one")
    with pytest.raises(IdempotencyMismatchError):
        await bench.ask(request=b"two")


async def test_a_key_is_forgotten_with_time() -> None:
    bench = Bench()
    await bench.ask()
    bench.now = 2.0
    assert await bench.ask() == b"answer 2"


async def test_failed_work_may_be_tried_again() -> None:
    bench = Bench()

    async def fail() -> bytes:
        raise HubSubError("no")

    with pytest.raises(HubSubError):
        await bench.window.once(b"s", "k", b"r", fail)
    assert await bench.ask() == b"answer 1"


@pytest.mark.parametrize("limits", [{"idempotency_keys_max": 10}, {"idempotency_bytes_max": 100}])
async def test_the_window_stays_within_its_bounds(limits: dict[str, Any]) -> None:
    bench = Bench(**limits)
    for i in range(200):
        await bench.ask(f"key {i}")
    assert len(bench.window) <= 10 and bench.window.bytes <= 200


async def test_a_window_full_of_running_work_refuses() -> None:
    bench = Bench(idempotency_keys_max=1)
    bench.gate.clear()
    first = asyncio.ensure_future(bench.ask("a"))
    await asyncio.wait([first], timeout=0)
    with pytest.raises(TooBusyError):
        await bench.ask("b")
    assert bench.window.refused == 1
    bench.gate.set()
    await first
