"""Measures how soon the embedded coordinator accepts commits after its leader is killed: `python
tests/coordination/kills.py [KILLS]`.

Three members in processes of their own, on synced disks. Each time the leader gets SIGKILL, and a client
retries a commit from then on until one succeeds. Prints milliseconds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordination.stores import MEMBERS, Embedded
from coordination.waiting import patiently
from hubsub.coordination import Put


async def main(kills: int, directory: Path) -> None:
    store = Embedded(directory)
    took = []
    try:
        store.start()
        async with await store.open("kills") as coordinator:
            for turn in range(kills):
                await patiently(coordinator, Put("hubs/before", str(turn).encode()))
                leader = next(member for member in range(MEMBERS) if store.leads(member))
                start = time.monotonic()
                store.kill(leader)
                await patiently(coordinator, Put("hubs/after", str(turn).encode()))
                took.append((time.monotonic() - start) * 1_000)
                await store.restart(leader)
    finally:
        store.stop()
    took.sort()
    p99 = took[min(len(took) - 1, len(took) * 99 // 100)]
    print(f"{kills} kills: median {statistics.median(took):.0f} ms, p99 {p99:.0f} ms, most {took[-1]:.0f} ms")
    print("each:", *(f"{ms:.0f}" for ms in took))


with tempfile.TemporaryDirectory() as temporary:
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, Path(temporary)))
