"""Tests of your own code against a real node.

    pip install pytest
    pytest examples/test_with_fixture.py

`hubsub.testing.Node` starts a node on free ports and ends it. You need no node that runs already.
"""

import json
from collections.abc import Iterator

import pytest

from hubsub import BlockingClient
from hubsub.testing import Node


def greet(client: BlockingClient, room: str, user: str) -> None:
    """The code under test: it publishes a greeting."""
    client.publish(f"chat:{room}", json.dumps({"user": user, "text": f"{user} says hello"}))


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """One node for all tests. Its rooms `chat:…` keep their last hundred messages."""
    with Node(classes=[{"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}]) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[BlockingClient]:
    """A client for one test."""
    with BlockingClient(node.redis_url) as client:
        yield client


def test_a_subscriber_gets_the_greeting(client: BlockingClient) -> None:
    """A live subscriber gets the message while it is connected."""
    with client.subscribe("chat:live") as messages:
        greet(client, "live", "Ann")
        record = messages.get(timeout_s=10)
    assert record is not None
    assert json.loads(record.payload) == {"user": "Ann", "text": "Ann says hello"}


def test_a_late_subscriber_gets_the_greeting_from_the_history(client: BlockingClient) -> None:
    """A subscriber that comes after the message."""
    greet(client, "late", "Ben")
    with client.subscribe("chat:late", last=1) as messages:
        record = messages.get(timeout_s=10)
    assert record is not None and b"Ben says hello" in record.payload
