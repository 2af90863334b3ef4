"""The real phoenix client, unmodified, under node, against a node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.servers import Server, hubsub_node, until

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent
CHAT = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}


def url_of(server: Server) -> str:
    """The URL for the phoenix client."""
    assert server.node is not None
    host, port = server.node.ws
    return f"ws://{host}:{port}/socket"


class Client:
    """A page in a node process: sends it commands and reads its observations."""

    def __init__(self, server: Server, *, polls: bool = False, **params: Any) -> None:
        self.process = subprocess.Popen(
            ["node", str(HERE / "phoenix_live.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.do("connect", url=url_of(server), params=params, polls=polls)
        self.wait(open=True)

    def do(self, does: str, **how: Any) -> None:
        """Sends a command to the page."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"does": does, **how}) + "\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next observation; the time-out of the test ends a page that reports nothing."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the page has ended"
        seen: dict[str, Any] = json.loads(line)
        return seen

    def wait(self, **what: Any) -> dict[str, Any]:
        """The next observation with all these values; skips those before it."""
        while True:
            seen = self.next()
            if all(name in seen and seen[name] == value for name, value in what.items()):
                return seen

    def wait_until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next observation for which `is_it` is true; skips those before it."""
        while not is_it(seen := self.next()):
            pass
        return seen

    def join(self, topic: str, **how: Any) -> dict[str, Any]:
        """Joins a topic. Returns the response."""
        self.do("join", topic=topic, **how)
        response: dict[str, Any] = self.wait(topic=topic, joined="ok")["response"]
        return response

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def pages() -> Iterator[Callable[..., Client]]:
    """Makes pages; all end with the test."""
    if not (HERE / "node_modules/phoenix").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    made: list[Client] = []

    def one(server: Server, **params: Any) -> Client:
        made.append(Client(server, **params))
        return made[-1]

    yield one
    for client in made:
        client.close()


def test_the_real_client_against_a_node(needs: Callable[..., None], pages: Callable[..., Client]) -> None:
    needs("hubsub-core")
    with hubsub_node(2, {"ws": "127.0.0.1:0"}) as server, server.connect() as redis:
        one, two = pages(server), pages(server)
        assert one.join("chat:a")["recovered"] is two.join("chat:a")["recovered"] is True
        one.do("push", topic="chat:a", event="publish", payload=["event", {"message": "Hi"}])
        seen = [one.next() for _ in "12"]
        said = {"topic": "chat:a", "event": "event", "payload": {"message": "Hi"}}
        assert said in seen and {"topic": "chat:a", "answer": "ok", "response": {}} in seen
        assert two.next() == said
        two.do("push", topic="chat:a", event="file", hex="00ff22")
        bytes_said = {"topic": "chat:a", "event": "file", "payload": {"hex": "00ff22"}}
        assert bytes_said in [two.next(), two.next()]
        assert one.next() == bytes_said
        assert redis.ask("PUBLISH", "chat:a", "from redis") == 2
        for page in (one, two):
            assert page.next() == {"topic": "chat:a", "event": "message", "payload": {"data": "from redis"}}
        one.do("push", topic="chat:a", event="phx_close", payload={})
        assert one.next() == {"topic": "chat:a", "answer": "error", "response": {"reason": "reserved event"}}
        one.do("leave", topic="chat:a")
        one.wait(topic="chat:a", closed=True)
        # The library closes a channel before the server has processed the leave.
        until(lambda: redis.ask("PUBSUB", "NUMSUB", "chat:a") == [b"chat:a", 1])
        assert redis.ask("PUBLISH", "chat:a", "to one") == 1
        # It rejoins and gets messages from then on.
        one.join("chat:a")
        assert redis.ask("PUBLISH", "chat:a", "to both") == 2
        assert one.next()["payload"] == {"data": "to both"}


def test_the_real_client_comes_back_and_gets_what_it_missed(
    needs: Callable[..., None], pages: Callable[..., Client], tmp_path: Path
) -> None:
    needs("hubsub-core")
    kept = {"name": "kept", "match": ["kept:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    config = {"ws": "127.0.0.1:0", "data": str(tmp_path / "data")}
    with hubsub_node(2, config, classes=[kept, CHAT]) as server, server.connect() as redis:
        page = pages(server, positions=True)
        before = page.join("kept:a", resume=True)
        forgotten = page.join("chat:a", resume=True)
        for number in range(3):
            redis.ask("PUBLISH", "kept:a", json.dumps({"n": number}))
            assert page.next()["payload"] == {"n": number}
        redis.ask("PUBLISH", "chat:a", "{}")
        assert page.next()["topic"] == "chat:a"
    with hubsub_node(2, config, classes=[kept, CHAT]) as server, server.connect() as redis:
        # The page reconnects by itself, before or after this publish.
        page.do("move", url=url_of(server))
        redis.ask("PUBLISH", "kept:a", '{"n":3}')
        seen: dict[str, Any] = {}
        numbers: list[int] = []
        while len(seen) < 2 or numbers != [3]:
            line = page.next()
            if line.get("joined") == "ok":
                seen[line["topic"]] = line["response"]
            elif "event" in line:
                numbers.append(line["payload"]["n"])
                assert numbers == [3], "nothing twice, nothing missing"
        assert seen["kept:a"]["recovered"] is True
        assert seen["kept:a"]["position"].split("-")[0] == before["position"].split("-")[0], "the same life"
        assert seen["chat:a"]["recovered"] is False, "what was in memory had another life"
        assert seen["chat:a"]["position"] != forgotten["position"]


def test_the_real_client_polls_and_comes_back(
    needs: Callable[..., None], pages: Callable[..., Client], tmp_path: Path
) -> None:
    needs("hubsub-core")
    kept = {"name": "kept", "match": ["kept:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    config = {"ws": "127.0.0.1:0", "data": str(tmp_path / "data")}
    limits = {"longpoll_window_ms": 200}
    with hubsub_node(2, config, classes=[kept], limits=limits) as server, server.connect() as redis:
        polling, other = pages(server, polls=True, positions=True), pages(server)
        assert polling.join("kept:a", resume=True)["recovered"] is other.join("kept:a")["recovered"] is True
        until(lambda: server.metric("longpoll_sessions") == 1)
        polling.do("push", topic="kept:a", event="say", payload={"n": 0})
        said = {"topic": "kept:a", "event": "say", "payload": {"n": 0}}
        seen = [polling.next(), polling.next()]
        assert said in seen and {"topic": "kept:a", "answer": "ok", "response": {}} in seen
        assert other.next() == said
        polling.do("push", topic="kept:a", event="file", hex="00ff22")
        assert other.next() == {"topic": "kept:a", "event": "file", "payload": {"hex": "00ff22"}}
        assert polling.wait(event="file")["payload"] == {"base64": "AP8i"}
        for n in range(1, 31):
            redis.ask("PUBLISH", "kept:a", json.dumps({"n": n}))
        assert [polling.wait(event="message")["payload"]["n"] for _ in range(30)] == list(range(1, 31))
    with hubsub_node(2, config, classes=[kept], limits=limits) as server, server.connect() as redis:
        redis.ask("PUBLISH", "kept:a", '{"n":31}')
        polling.do("move", url=url_of(server))
        assert polling.wait(joined="ok")["response"]["recovered"] is True
        assert polling.next()["payload"] == {"n": 31}, "nothing twice, nothing missing"
