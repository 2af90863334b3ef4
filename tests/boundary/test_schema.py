"""The REST API fits its OpenAPI document: schemathesis sends requests that fit the document and ones that do
not.

A fitting request must be accepted, any other must be refused, and each response must fit the document. Seed
and number of examples are fixed, so each run sends the same requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hubsub.testing import Node

pytest.importorskip("schemathesis", reason="needs schemathesis")
pytestmark = pytest.mark.needs("hubsub-core")

HERE = Path(__file__).parent
SEED, EXAMPLES = 20, 4
CLASSES = [
    {
        "name": "devices",
        "match": ["devices/#"],
        "device": "devices/{device}/#",
        "durability": "durable",
        "history": {"bytes": "64MiB"},
    },
    # The class of all other rooms, so that records may be numbered and rooms made under any name.
    {"name": "safe", "durability": "durable", "history": {"bytes": "64MiB"}},
]


def test_schemathesis_finds_nothing(make_node: Callable[..., Node], tmp_path: Path) -> None:
    node = make_node(classes=CLASSES, config={"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0"})
    options = ["--seed", SEED, "--max-examples", EXAMPLES, "--phases", "coverage,fuzzing", "--workers", 1]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml", "run"),
            f"{node.http_url}/v1/openapi.json",
            *map(str, options),
            *("--request-timeout", "20", "--suppress-health-check", "all", "--no-color"),
        ],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(HERE / "schema_hooks.py")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
