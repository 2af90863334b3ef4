"""Tries the wheel of a folder like a user: a bare environment, a node, one message there and back."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TRIAL = """
import importlib.util
import urllib.request
import hubsub, hubsub.testing
assert importlib.util.find_spec("pyspark_hubsub") is not None, "Spark finds the source by this package"
with hubsub.testing.Node(classes=[{"name": "all", "history": {"messages": 10}}]) as node:
    with hubsub.BlockingClient(node.redis_url) as client, client.subscribe("lobby") as records:
        assert client.publish("lobby", "hello") == 1
        record = records.get(timeout_s=10)
        assert record is not None and record.payload == b"hello", record
        assert client.history("lobby").records[0].payload == b"hello"
    for path in ("/", "/console/main.js", "/console/vendor/uPlot.iife.min.js"):
        with urllib.request.urlopen(node.http_url + path) as answer:
            assert answer.status == 200 and answer.read(), path
    assert node.stop() == 0
from hubsub.cli.demo.page import PAGES
assert {"index.html", "chat.js", "vendor/phoenix.mjs"} <= PAGES.files.keys(), "the pages of `hubsub demo chat`"
print("the wheel works:", hubsub.__version__)
"""


def main() -> int:
    wheels = list(Path(sys.argv[1]).glob("hubsub-*.whl"))
    assert len(wheels) == 1, f"one wheel is expected in {sys.argv[1]}, there are {len(wheels)}"
    assert "-abi3-" in wheels[0].name, wheels[0].name
    with tempfile.TemporaryDirectory(prefix="hubsub-wheel-") as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory, "bin", "python"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheels[0])], check=True)
        run = subprocess.run([python, "-c", TRIAL], cwd=directory, check=False)
        helped = subprocess.run(
            [Path(directory, "bin", "hubsub"), "--help"], stdout=subprocess.DEVNULL, check=False
        )
    return run.returncode or helped.returncode


if __name__ == "__main__":
    sys.exit(main())
