"""A node that is stopped while it joins ends then, not when it has given up joining."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from command_line import HUBSUB, environment

pytestmark = pytest.mark.needs("hubsub-core")

END_S = 15
"""Ends a hung test: well below the time that a node waits for members."""


def test_a_node_that_joins_nobody_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"
        keys = {"--data": tmp_path, "--link": "127.0.0.1:0", "--raft": "127.0.0.1:0", "--join": nobody}
        command = [*HUBSUB, "serve", *(str(part) for pair in keys.items() for part in pair)]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(HUBSUB_CLUSTER_SECRET="a secret of the tests"),
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "asks members to let this node in" in line:
                    break
            else:
                raise AssertionError("it never asked")
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
