"""`hubsub …` as a user runs it: a process of its own, that knows of no node but what the test tells it."""

import os
import subprocess
import sys

HUBSUB = [sys.executable, "-m", "hubsub"]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables that configure `hubsub`, and with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HUBSUB_")} | more


def hubsub(*args: object, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    command = [*HUBSUB, *map(str, args)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, env=environment(**env)
    )
