"""Helpers that wait, with a time-out, for coordinator states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hubsub.coordination import Changes, Coordinator, Entry, Put, Watch
from hubsub.errors import CoordinatorUnknownError, CoordinatorUnreachableError

PATIENCE_S = 30.0


async def gives(watch: Watch) -> Changes:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(watch)


async def becomes(coordinator: Coordinator, key: str, value: bytes | None) -> None:
    """Waits on a watch until a key has a value; None: until the key is gone."""
    watch = coordinator.watch(key.rpartition("/")[0])
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for changes in watch:
                at = {entry.key: entry.value for entry in changes.entries}
                if at.get(key) == value and (value is not None or changes.whole or key in changes.gone):
                    return
    finally:
        await watch.close()


async def patiently(coordinator: Coordinator, put: Put) -> None:
    """Writes as soon as there is a leader again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await coordinator.commit({}, [put])
                return
            except (CoordinatorUnknownError, CoordinatorUnreachableError):
                continue


async def read_patiently(coordinator: Coordinator, key: str) -> Entry | None:
    """Reads as soon as a member responds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await coordinator.get(key)
            except CoordinatorUnreachableError:
                continue


# -- faults --


async def eventually(check: Callable[[], bool]) -> None:
    """Polls until `check` is true; for changes without a notification."""
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0.005)
