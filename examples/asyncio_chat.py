"""A chat in the terminal.

Start a node (`make run`), then this program in two terminals, each with a name of its own:

    python examples/asyncio_chat.py Ann
    python examples/asyncio_chat.py Ben

Type a line to send it. Ctrl-D ends the program. It first prints the last ten messages of the room. After a lost
connection it connects again and reads what it missed.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from hubsub.client import URL_DEFAULT, Client, Subscription


async def typed() -> AsyncIterator[str]:
    """The lines that you type."""
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async for line in lines:
        yield line.decode().strip()


async def show(messages: Subscription) -> None:
    """Prints each message; text that is not JSON is printed as it is."""
    async for record in messages:
        if record.gap:
            print("(some messages are missing here)", flush=True)
        try:
            event = json.loads(record.payload)
            print(f"{event['user']}: {event['text']}", flush=True)
        except (ValueError, TypeError, KeyError):
            print(record.payload.decode(errors="replace"), flush=True)


async def chat(url: str, room: str, user: str) -> None:
    """Shows the room and sends what you type, until your input ends."""
    topic = f"chat:{room}"
    async with Client(url) as client, client.subscribe(topic, last=10) as messages:
        shown = asyncio.create_task(show(messages))
        async for text in typed():
            if text:
                await client.publish(topic, json.dumps({"user": user, "kind": "message", "text": text}))
        shown.cancel()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A chat in the terminal.")
    options.add_argument("name", help="your name in the room")
    options.add_argument("--room", default="lobby")
    options.add_argument("--url", default=URL_DEFAULT, help="the node (default: %(default)s)")
    args = options.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(chat(args.url, args.room, args.name))
