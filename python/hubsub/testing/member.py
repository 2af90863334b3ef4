"""A member of the embedded coordinator as a process: `python -m hubsub.testing.member SETUP`.

SETUP is JSON with the arguments of `EmbeddedCoordinator.open`. The process prints `ready` once it is in its
cluster, answers each line of its standard input with its status, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys

from hubsub.coordination.embedded import EmbeddedCoordinator
from hubsub.errors import StartError


async def main() -> None:
    setup = json.loads(sys.argv[1])
    setup["secret"] = setup["secret"].encode()
    try:
        coordinator = await EmbeddedCoordinator.open(setup)
    except StartError as error:
        sys.exit(str(error))
    print("ready", flush=True)
    async with coordinator:
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await coordinator.status()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
