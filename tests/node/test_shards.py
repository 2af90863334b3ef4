"""Several shards deliver what one does: every script yields the same transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients import script
from clients.servers import Server, hubsub_node

FOLDER = Path(script.__file__).with_name("scripts")
SCRIPTS = [
    pytest.param(one, resp, id=f"{path.stem}-{one.name}-resp{resp}")
    for path in sorted(FOLDER.glob("*.txt"))
    for one in script.load(path)
    for resp in one.protocols
]


@pytest.fixture(scope="module")
def nodes(needs: Callable[..., None]) -> Iterator[list[Server]]:
    """Nodes with one, two and four shards."""
    needs("hubsub-core")
    with hubsub_node(1) as one, hubsub_node(2) as two, hubsub_node(4) as four:
        yield [one, two, four]


@pytest.mark.parametrize(("one", "resp"), SCRIPTS)
def test_the_number_of_shards_changes_no_reply(one: script.Script, resp: int, nodes: list[Server]) -> None:
    first, *others = [script.run(one, resp, node.host, node.port) for node in nodes]
    for other in others:
        assert other == first


@pytest.mark.parametrize("kind", ["", "P", "S"])
def test_an_unsubscribe_that_is_confirmed_holds_on_every_shard(nodes: list[Server], kind: str) -> None:
    """As in Redis, an unsubscribed client no longer counts once it has the confirmation, whoever
    publishes."""
    publish = "SPUBLISH" if kind == "S" else "PUBLISH"
    for node in nodes:
        subscribers = [node.connect() for _ in range(8)]
        publishers = [node.connect() for _ in range(8)]
        for n in range(50):
            for subscriber in subscribers:
                subscriber.ask(f"{kind}SUBSCRIBE", f"topic{n}")
            assert {p.ask(publish, f"topic{n}", "x") for p in publishers} == {len(subscribers)}
            for subscriber in subscribers:
                subscriber.read_many(len(publishers))
                subscriber.ask(f"{kind}UNSUBSCRIBE", f"topic{n}")
            assert {p.ask(publish, f"topic{n}", "x") for p in publishers} == {0}
            assert publishers[0].ask("PUBSUB", "NUMPAT") == 0
        for connection in (*subscribers, *publishers):
            connection.close()
