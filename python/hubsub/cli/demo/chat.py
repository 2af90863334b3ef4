"""`hubsub demo chat`: a cluster on this machine, a chat page, and simulated users.

The nodes are those of `hubsub cluster up`, on free ports, and its other commands list, kill and start them.
"""

import asyncio
import os
import secrets
import sys
import tempfile
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

from hubsub.cli.cluster.control import PREFIX, Control
from hubsub.cli.cluster.lines import Lines
from hubsub.cli.cluster.plan import Plan
from hubsub.cli.cluster.supervisor import Supervisor
from hubsub.cli.common import Api, print_json, say
from hubsub.cli.demo.page import Page
from hubsub.cli.demo.talk import ROOMS, talk
from hubsub.errors import HubSubError
from hubsub.testing.rest import hubs_away

NODES = 3

LOOK_S = 0.05
"""Seconds between two checks whether all hubs have their final leaders."""
DEALT_S = 30.0
"""Time limit for that, in seconds."""

CONFIG = """\
ws_origins = ["{origin}"]
log_level = "warning"

[[class]]
name = "chat"
match = ["chat:*"]
placement = "ring"
history = {{ messages = 1000 }}
"""


def run(pace: float, ends_after_s: float | None, opens: bool | None, as_json: bool) -> int:
    """Runs the demonstration until a signal or the time limit ends it.

    Args:
        pace: Speed of the conversation: 1 is natural, 0 turns it off.
        ends_after_s: Seconds from the time when all nodes serve; None: no limit.
        opens: Whether to open browsers; None: if there is a display.
        as_json: Prints one object instead of lines for people.

    Returns:
        The exit code.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as own:
        return asyncio.run(_Chat(Path(own), pace, ends_after_s, opens, as_json).run())


class _Chat:
    """The demonstration: its nodes, its page, and its work after all nodes serve."""

    def __init__(
        self, directory: Path, pace: float, ends_after_s: float | None, opens: bool | None, as_json: bool
    ) -> None:
        self._pace, self._ends_after_s = pace, ends_after_s
        self._opens = has_display() if opens is None else opens
        self._as_json = as_json
        self._directory = directory
        self._page = Page(self._facts)
        config = directory / "chat.toml"
        config.write_text(CONFIG.format(origin=self._page.url))
        plan = Plan(
            nodes=NODES, directory=directory, secret=secrets.token_hex(32), base_port=0, config=config
        )
        self._supervisor = Supervisor(plan.names, plan.command_for, Lines(plan.names).say)
        self._work: asyncio.Task[None] | None = None

    async def run(self) -> int:
        async with Control(self._supervisor, self._directory, self._directory), self._page:
            try:
                return await self._supervisor.run(self._on_ready)
            finally:
                if self._work is not None:
                    self._work.cancel()
                    await asyncio.wait([self._work])

    def _on_ready(self) -> None:
        self._work = asyncio.ensure_future(self._go())

    async def _go(self) -> None:
        """Prints the addresses, then runs the conversation."""
        nodes = self._supervisor.rows()
        console = f"http://{nodes[0]['http']}"
        # If a node dies this early, do not wait for it.
        with suppress(TimeoutError, HubSubError):
            async with asyncio.timeout(DEALT_S):
                await _dealt(console)
        if self._ends_after_s is not None:
            asyncio.get_running_loop().call_later(self._ends_after_s, self._supervisor.end, 0)
        if self._as_json:
            print_json({"page": self._page.url, "console": console, "nodes": nodes})
        else:
            print(f"chat     {self._page.url}/\nconsole  {console}/", flush=True)
            say(
                "`hubsub cluster ps|kill|start` in another terminal, in this directory, is about its nodes; "
                "ctrl-C ends all"
            )
        sys.stdout.flush()
        if self._opens:
            for url in (self._page.url, console):
                await asyncio.to_thread(webbrowser.open, url)
        if self._pace:
            await talk(f"redis://{','.join(row['redis'] for row in nodes)}", self._pace)

    def _facts(self) -> dict[str, Any]:
        """Content of `/demo.json`. A dead node stays in it, as it may come back."""
        rows = [row for row in self._supervisor.rows() if row.get("ws")]
        return {
            "rooms": ROOMS,
            "nodes": [{"name": row["name"], "address": f"ws://{row['ws']}"} for row in rows],
        }


async def _dealt(url: str) -> None:
    """Waits until all hubs have their final leaders and all nodes are voters: then a death is survived."""
    while True:
        seen = await asyncio.to_thread(Api(url).get, "/v1/cluster")
        up = {node["name"] for node in seen["nodes"] if node["state"] == "up"}
        counted = set(seen["voters"]["nodes"]) == up and not seen["voters"]["before"]
        if len(up) == NODES and counted and not hubs_away(seen, up, {"chat"}):
            return
        await asyncio.sleep(LOOK_S)


def has_display() -> bool:
    """Whether a browser can be shown on this machine."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
