"""Nodes with links and without a coordinator: each runs this file as a process, and the test sets its peers.

A process runs `hubsub.node.Node`, prints peer events as JSON lines and reads commands as lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hubsub.testing.forks import start

SECRET = "a secret of the tests"
WAIT_S = 60.0
"""Time limit in seconds for an expected event."""

QUICK = {"link_redial_ms_min": 10, "link_redial_ms_max": 100}
"""Short redial delays, so that tests need not wait."""


class Linked:
    """A node process that opens links once the test has sent it its peers.

    Args:
        name: The node's name.
        directory: Contains the node's log file.
        incarnation: The node's incarnation.
        shards: Number of shards.
        link: Address of the link listener.
        cluster: The cluster's id.
        secret: The cluster secret.
        limits: Limits that differ from `QUICK` and the defaults.
        classes: Room classes.
        begins: Whether the node begins links at once; otherwise the `begin` command starts them.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        incarnation: int = 1,
        shards: int = 2,
        link: str = "127.0.0.1:0",
        cluster: str = "test",
        secret: str = SECRET,
        limits: Mapping[str, Any] | None = None,
        classes: Sequence[Mapping[str, Any]] = (),
        begins: bool = True,
    ) -> None:
        self.name, self.incarnation, self.shards = name, incarnation, shards
        self.log_file = directory / f"{name}-{incarnation}-{time.monotonic_ns()}.log"
        options = {
            "cluster": cluster,
            "incarnation": incarnation,
            "begins": begins,
            "config": {
                "node": name,
                "redis": "127.0.0.1:0",
                "link": link,
                "shards": shards,
                "cluster_secret": secret,
                "limits": {**QUICK, **(limits or {})},
                **({"class": list(classes)} if classes else {}),
            },
        }
        with open(self.log_file, "wb") as log:
            self.process = start(__file__, [json.dumps(options)], log.fileno(), os.environ)
        self.seen: list[dict[str, Any]] = []
        self._part = b""
        ready = self.wait(lambda said: said["say"] == "ready")
        self.redis, self.link = ready["redis"], ready["link"]

    @property
    def row(self) -> tuple[str, int, list[str], int]:
        """The node's registration: name, incarnation, link addresses, shards."""
        return (self.name, self.incarnation, [self.link], self.shards)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tell(self, order: str, *args: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([order, *args]).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, order: str, *args: Any) -> Any:
        """Sends a command and returns its answer."""
        self.tell(order, *args)
        return self.wait(lambda said: said["say"] == order)["answer"]

    def roster(self, *peers: Linked | tuple[str, int, list[str], int]) -> None:
        self.tell("roster", [peer.row if isinstance(peer, Linked) else peer for peer in peers])

    def peers(self) -> dict[str, dict[str, Any]]:
        return {peer["node"]: peer for peer in self.ask("peers")}

    def event(self, kind: str, node: str | None = None, code: str | None = None) -> dict[str, Any]:
        """The next peer event of that kind.

        Args:
            kind: The event's kind.
            node: The peer's name; None matches all.
            code: The event's code; None matches all.

        Returns:
            The event's fields.
        """

        def is_it(said: dict[str, Any]) -> bool:
            return (
                said["say"] == "peer"
                and said["kind"] == kind
                and node in (None, said["node"])
                and code in (None, said["code"])
            )

        return self.wait(is_it)

    def lead(self, kind: str, **fields: int) -> dict[str, Any]:
        """The next leader-lease event of that kind."""
        wanted = {"say": "lead", "kind": kind, **fields}
        return self.wait(lambda said: wanted.items() <= said.items())

    def wait(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next output line that fulfils the condition; skips other lines before it."""
        until = time.monotonic() + WAIT_S
        while True:
            said = self._next(until)
            if is_it(said):
                return said

    def _next(self, until: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while b"\n" not in self._part:
            left = until - time.monotonic()
            data = os.read(fd, 65_536) if left > 0 and poll.poll(left * 1_000) else b""
            assert data, f"{self.name} said nothing more; before: {self.seen[-9:]}, log: {self.log[-3_000:]}"
            self._part += data
        line, _, self._part = self._part.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        self.seen.append(said)
        return said

    def signal(self, sig: int) -> None:
        self.process.send_signal(sig)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stops the node as SIGTERM does."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def say(what: str, **fields: Any) -> None:
    print(json.dumps({"say": what, **fields}), flush=True)


async def serve(options: dict[str, Any]) -> None:
    from types import SimpleNamespace as Row

    from hubsub.config import RoomClass, resolve
    from hubsub.errors import HubSubError
    from hubsub.node import Node

    node = Node(resolve(options["config"], {}, {}))
    addresses = await node.start()
    node.on_lease = lambda event: say("lead", at_s=time.monotonic(), **event._asdict())
    node.on_ready = lambda: say("ready_now", who=sorted(node.route_ready()))
    node.on_room_miss = lambda room_class, room, makes: say(
        "room_miss", room_class=room_class, room=room.decode(), makes=makes
    )
    node.on_locate = lambda number, room: say("locate", number=number, room=room.decode())
    node.on_peer = lambda event: say("peer", **event._asdict())
    # The node answers a peer's request with the reversed body, except for the body `never`.
    node.on_request = lambda peer, number, body: (
        None if body == b"never" else node.link_answer(peer, number, body[::-1])
    )
    if options["begins"]:
        node.link_begin(options["cluster"], options["incarnation"])
    say("ready", **addresses)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, lines.feed_eof)

    async def ask(peer: str, body: str) -> None:
        try:
            answer = (await node.link_ask(peer, body.encode())).decode()
        except HubSubError as error:
            answer = error.code
        say("ask", answer=answer)

    async def tables(controller_term: int, for_s: float, rows: list[Any], voters: int) -> None:
        may = {(name, number): {(hub, term) for hub, term in pairs} for name, number, pairs in rows}
        now_s = time.monotonic()
        await node.lead_tables(controller_term, now_s + for_s, now_s, may, voters)
        say("tables", answer=leads())

    async def resign(controller_term: int) -> None:
        await node.lead_resign(controller_term)
        say("resign", answer=leads())

    def leads() -> dict[str, Any]:
        snapshot = node.lead_snapshot()
        peers = {
            name: peer._asdict() | {"gave_up": sorted(peer.gave_up), "suspects": sorted(peer.suspects)}
            for (name, number), peer in snapshot.peers.items()
        }
        numbers = sorted(snapshot.peers)
        return snapshot._asdict() | {"peers": peers, "processes": numbers}

    asking = set()
    while line := await lines.readline():
        match json.loads(line):
            case ["roster", rows]:
                node.link_roster([tuple(row) for row in rows])
            case ["begin", incarnation]:
                node.link_begin(options["cluster"], incarnation)
            case ["peers"]:
                say("peers", answer=node.link_peers())
            case ["status", classes]:
                node.link_status(classes)
            case ["ask", peer, body]:
                asking.add(asyncio.create_task(ask(peer, body)))
            case ["routes", rows]:
                node.lead_routes([tuple(row) for row in rows])
            case ["voters", revision, names]:
                node.lead_voters(revision, names, [])
            case ["tables", controller_term, for_s, rows, revision]:
                asking.add(asyncio.create_task(tables(controller_term, for_s, rows, revision)))
            case ["resign", controller_term]:
                asking.add(asyncio.create_task(resign(controller_term)))
            case ["leads"]:
                say("leads", answer=leads())
            case ["route_classes", rows]:
                known = {cls.name: cls for cls in node.config.all_classes}
                node.route_classes(
                    [
                        Row(
                            definition=known.get(name) or RoomClass(name=name),
                            hubs=hubs,
                            placement=how,
                            version=1,
                            is_removed=False,
                        )
                        for name, hubs, how in rows
                    ]
                )
            case ["route_hubs", rows]:
                keys = ("hub", "room_class", "index", "term", "leader")
                rows = [
                    Row(**dict(zip(keys, row[:4], strict=False)), leader=row[4] and tuple(row[4]))
                    for row in rows
                ]
                node.route_hubs(rows)
            case ["route_rooms", room_class, hubs]:
                node.route_rooms(room_class, {room.encode(): hub for room, hub in hubs.items()})
            case ["route_refuse", room, *code]:
                node.route_refuse([room.encode()], *code)
            case ["route_absent", room]:
                node.route_absent([room.encode()])
            case ["route_located", number, members, *code]:
                node.route_located(number, members and [tuple(member) for member in members], *code)
            case ["route_of", topic]:
                room, room_class, index = node.route_of(topic.encode())
                say("route_of", answer=[room.decode(), room_class, index])
            case ["fds"]:
                say("fds", answer=len(os.listdir("/proc/self/fd")))
            case ["metrics"]:
                shards = node.metrics()["shards"]
                say("metrics", answer={name: sum(shard[name] for shard in shards) for name in shards[0]})
    await node.stop()


if __name__ == "__main__":
    from hubsub.cli.logs import set_up

    set_up("debug", "json")
    asyncio.run(serve(json.loads(sys.argv[1])))
