"""A coordinator member whose disk becomes full: `python full.py SETUP`.

It prints the outcomes of its commits, and its own failure.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

from hubsub.coordination import Put
from hubsub.coordination.embedded import EmbeddedCoordinator
from hubsub.errors import CoordinatorError


async def outcome(coordinator: EmbeddedCoordinator) -> str:
    try:
        await coordinator.commit({}, [Put("hubs/1", b"more")])
    except CoordinatorError as error:
        return error.code
    return "made"


async def main() -> None:
    setup = json.loads(sys.argv[1])
    setup["secret"] = setup["secret"].encode()
    async with await EmbeddedCoordinator.open(setup) as coordinator:
        assert await outcome(coordinator) == "made" and coordinator.failed is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        first = await outcome(coordinator)
        await coordinator.has_failed.wait()
        told = [first, await outcome(coordinator), coordinator.failed]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(json.dumps(told), flush=True)


asyncio.run(main())
