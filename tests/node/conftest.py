"""Nodes for a single test: `start(shards=…, limits=…, classes=…)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.servers import Server, hubsub_node

Start = Callable[..., Server]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of the test's nodes; the first node creates it."""
    return tmp_path / "data"


@pytest.fixture
def start(needs: Callable[..., None], tmp_path: Path) -> Iterator[Start]:
    """Starts nodes with the arguments of `hubsub_node`. All end with the test, before its directory is
    removed."""
    needs("hubsub-core")
    with contextlib.ExitStack() as stack:

        def one(*args: Any, **kwargs: Any) -> Server:
            return stack.enter_context(hubsub_node(*args, **kwargs))

        yield one
