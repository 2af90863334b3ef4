"""`hubsub …` as a user runs it: in a process of its own, which knows only the nodes that the test names."""

import os
import subprocess
import sys
from pathlib import Path

BENCHES = str(Path(__file__).parents[1] / "benches")
HUBSUB = [sys.executable, "-m", "hubsub"]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables that configure `hubsub`, with the benchmark's package, and
    with `more`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HUBSUB_")}
    path = os.pathsep.join(filter(None, [BENCHES, inherited.get("PYTHONPATH")]))
    return inherited | {"PYTHONPATH": path} | more


def hubsub(*args: object, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command and waits for its end.

    Args:
    args: Of the command.
    stdin: Text for its standard input.
    env: More variables of its environment.

    Returns:
    Its exit code and output.
    """
    command = [*HUBSUB, *map(str, args)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, env=environment(**env)
    )
