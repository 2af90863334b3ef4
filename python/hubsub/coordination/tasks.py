"""Waits for events, and ends tasks."""

import asyncio
from contextlib import suppress
from typing import Any


async def wait_set(event: asyncio.Event, within_s: float | None) -> None:
    """Waits until an event is set, for at most `within_s` seconds; None sets no limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()


async def end(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancels tasks and waits until they have ended, with whatever result; None is no task."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)
