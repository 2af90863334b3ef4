"""`hubsub top` in a terminal, connected to a real node."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable

import pytest
from command_line import HUBSUB, environment

from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core")


def test_it_shows_the_node_until_q_is_pressed(make_node: Callable[..., Node]) -> None:
    node = make_node(config={"node": "solo"})
    ours, theirs = pty.openpty()
    command = [*HUBSUB, "top", "--interval", "0.2", "--url", node.http_url]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()) as top:
        os.close(theirs)
        said = b""
        while b"busiest rooms" not in said:
            said += os.read(ours, 65_536)
        assert b"solo" in said
        os.write(ours, b"q")
        try:
            while os.read(ours, 65_536):
                pass
        except OSError:
            pass  # The other side is closed.
        assert top.wait(30) == 0
    os.close(ours)


def test_one_look_to_a_file_is_a_table(make_node: Callable[..., Node]) -> None:
    node = make_node(config={"node": "solo"})
    command = [*HUBSUB, "top", "--once", "--interval", "0.2", "--url", node.http_url]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert run.stdout.startswith("solo ") and "busiest clients" in run.stdout
