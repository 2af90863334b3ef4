"""The real phoenix client, unmodified, under node: the other side of the codec's tests.

It reads and writes the messages of `vectors.json` and plays `transcript.json`, in
`crates/hubsub-wire/tests/phoenix`; the codec's own tests do the same from the server's side.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.raw import TIMEOUT_S

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "crates/hubsub-wire/tests/phoenix"


def run(script: str, shared: str) -> dict[str, Any]:
    """Runs a script under node with a shared file. Returns the JSON that it printed."""
    if not (HERE / "node_modules/phoenix").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    command = ["node", str(HERE / script), str(SHARED / shared)]
    done = subprocess.run(command, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def read(shared: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((SHARED / shared).read_text())
    return content


def test_the_client_writes_and_reads_each_message_as_the_codec_does() -> None:
    vectors = read("vectors.json")
    assert run("phoenix_vectors.mjs", "vectors.json") == vectors
    assert all(len(vectors[side]) >= 10 for side in ("client", "server"))


def test_the_client_goes_through_its_connection_word_for_word() -> None:
    transcript = read("transcript.json")
    ok: list[Any] = ["ok", {}]
    assert run("phoenix_transcript.mjs", "transcript.json") == {
        "url": transcript["url"],
        "protocols": transcript["protocols"],
        "sent": [step["client"] for step in transcript["steps"] if "client" in step],
        "joined": ok,
        "published": ok,
        "typed": ok,
        "quoted": ok,
        "bytes": ok,
        "reserved": ["error", {"reason": "reserved event"}],
        "unmatched": ["error", {"reason": "unmatched topic"}],
        "last": ok,
        "again": ok,
        "left": ok,
        "messages": [
            ["event", {"message": "Hi"}],
            ["typing", {"who": "neo", "deep": [1, None, {"😀": "\u2028\n"}]}],
            ['ünï "quoted"', {}],
            ["bytes", {"hex": "00ff22"}],
            ["again", {"n": 2}],
        ],
        "errors": [{"reason": "room lost"}],
        "closed": ["topics:matrix"],
        "channels": 0,
        "stepsLeft": [],
    }
