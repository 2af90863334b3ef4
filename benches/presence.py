"""Members of one room: time until all of them see one more, cost of a change between nodes and per page, size
of the list for a new member, and how long members of a killed node are still shown.

    .venv/bin/python benches/presence.py [--members 10000] [--processes 4]

Three nodes on this machine, half of the members on each of two; all members get the presence list. Processes
hold the connections, read everything and search it for a few bytes, so the nodes and the loopback are
measured. Prints one JSON object.
"""

import argparse
import base64
import json
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hubsub.node import BUILD_PROFILE
from hubsub.testing import Node
from hubsub_bench.machine import describe

ROOM = "crowd"
WAIT_S = 120.0
"""Time limit of a measurement, in seconds."""
JOINS = (500, 1_000, 2_000)
"""Numbers of simultaneous changes, for their cost between nodes."""


def frame(text: str) -> bytes:
    """A text frame of a client: masked with zeros, which change nothing."""
    data = text.encode()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0xFE]) + struct.pack(">H", len(data))
    return b"\x81" + length + bytes(4) + data


def joined(address: tuple[str, int], key: str | None) -> socket.socket:
    """A page that has requested to join, as a member or as a viewer."""
    page = socket.create_connection(address, timeout=WAIT_S)
    nonce = base64.b64encode(os.urandom(16)).decode()
    page.sendall(
        (
            f"GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nHost: {address[0]}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n"
        ).encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += page.recv(4096)
    assert b" 101 " in answer, answer
    presence: Any = True if key is None else {"key": key}
    page.sendall(frame(json.dumps(["1", "1", ROOM, "phx_join", {"presence": presence}])))
    return page


def hold(address: tuple[str, int], first: int, count: int, control: Connection) -> None:
    """Holds members. On a mark, sends the time when each of them has read it; on an empty one, the bytes that
    all have read.

    Args:
        address: Host and port of the node.
        first: Number of the first member.
        count: Number of members.
        control: Connection to the main process.
    """
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    tails: dict[socket.socket, bytes] = {}
    mark, left = b"", set[socket.socket]()
    made = read = 0
    while True:
        if made < count and not waiting.select(0):
            # Read pending data of existing pages first.
            page = joined(address, f"m{first + made}")
            page.setblocking(False)
            waiting.register(page, selectors.EVENT_READ)
            tails[page] = b""
            made += 1
            if made == count:
                control.send("held")
        for ready, _ in waiting.select(0 if made < count else None):
            if ready.fileobj is control:
                if (told := control.recv()) is None:
                    return
                if not told:
                    control.send(read)
                    continue
                mark, left = told, set(tails)
                control.send("looks")
                continue
            page = ready.fileobj  # type: ignore[assignment]
            try:
                data = page.recv(1 << 20)
            except BlockingIOError:
                continue
            if not data:
                waiting.unregister(page)
                del tails[page]
                left.discard(page)
                continue
            read += len(data)
            if page in left and mark in tails[page] + data:
                left.discard(page)
                if not left:
                    control.send(time.monotonic())
            tails[page] = data[-64:]


def list_bytes(address: tuple[str, int]) -> int:
    """Size of the message with the presence list for a new page."""
    with joined(address, None) as page, page.makefile("rb") as said:
        for _ in ("the answer to the join", "the list"):
            length = said.read(2)[1]
            if length > 125:
                length = int.from_bytes(said.read(2 if length == 126 else 8))
            said.read(length)
    return length


class Nodes:
    def __init__(self, directory: Path) -> None:
        common = {
            "cluster_secret": "0123456789abcdef",
            "shards": 2,
            "log_level": "warning",
            **dict.fromkeys(("redis", "http", "link", "raft", "ws"), "127.0.0.1:0"),
        }
        limits = {
            "presence_listed_max": 100_000,
            "output_bytes_max": 1 << 30,
            "output_shard_bytes_max": 1 << 32,
        }
        self.a = Node(config={**common, "node": "a", "data": str(directory / "a")}, limits=limits)
        join = [self.a.ready["raft"]]
        # The third one has no members: it keeps the majority when another is killed.
        self.b, self.c = (
            Node(config={**common, "node": name, "data": str(directory / name), "join": join}, limits=limits)
            for name in "bc"
        )

    def count(self, node: Node) -> int:
        with urllib.request.urlopen(
            f"{node.http_url}/v1/rooms/{ROOM}/presence?limit=1", timeout=WAIT_S
        ) as answer:
            return int(json.load(answer)["count"])

    def until(self, node: Node, count: int) -> float:
        """Waits until a node reports this many members; returns the time."""
        end = time.monotonic() + WAIT_S
        while self.count(node) != count:
            assert time.monotonic() < end, f"{self.count(node)} are there, not {count}"
            time.sleep(0.02)
        return time.monotonic()

    def link_bytes(self) -> int:
        """Bytes that the nodes have sent each other."""
        total = 0
        for node in (self.a, self.b, self.c):
            with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=WAIT_S) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith("hubsub_shard_links_bytes_out_total"):
                        total += int(float(line.rpartition(" ")[2]))
        return total


def measure(members: int, processes: int, directory: Path) -> dict[str, Any]:
    """Takes all measurements once.

    Args:
        members: Number of members.
        processes: Processes that hold them.
        directory: For the nodes' data.
    """
    nodes = Nodes(directory)
    fork = multiprocessing.get_context("fork")
    crowd = []
    began = time.monotonic()
    for number in range(processes):
        node = (nodes.a, nodes.b)[number % 2]
        here, there = fork.Pipe()
        first, end = members * number // processes, members * (number + 1) // processes
        process = fork.Process(target=hold, args=(node.ws, first, end - first, there), daemon=True)
        process.start()
        crowd.append((node, here, process))
    for _, control, _ in crowd:
        assert control.recv() == "held"
    nodes.until(nodes.a, members)
    row: dict[str, Any] = {"members": members, "all_in_s": round(time.monotonic() - began, 2)}

    seen = []
    for number in range(5):
        key = f"newcomer-{number}"
        for _, control, _ in crowd:
            control.send(key.encode())
            assert control.recv() == "looks"
        start = time.monotonic()
        page = joined((nodes.a, nodes.b)[number % 2].ws, key)
        seen.append(max(control.recv() for _, control, _ in crowd) - start)
        page.close()
        nodes.until(nodes.a, members)
    row["join_seen_by_all_s"] = [round(s, 3) for s in seen]

    row["list_bytes"] = list_bytes(nodes.c.ws)

    def page_bytes() -> int:
        for _, control, _ in crowd:
            control.send(b"")
        return sum(control.recv() for _, control, _ in crowd)

    costs, of_pages = {}, {}
    time.sleep(2)
    idle, since = nodes.link_bytes(), time.monotonic()
    time.sleep(5)
    per_s = (nodes.link_bytes() - idle) / (time.monotonic() - since)
    for changes in JOINS:
        last = f'"extra-{changes}-{changes - 1}"'
        read = page_bytes()
        for _, control, _ in crowd:
            control.send(last.encode())
            assert control.recv() == "looks"
        before, since = nodes.link_bytes(), time.monotonic()
        pages = [joined(nodes.b.ws, f"extra-{changes}-{number}") for number in range(changes)]
        nodes.until(nodes.a, members + changes)
        for _, control, _ in crowd:
            control.recv()
        of_pages[changes] = round((page_bytes() - read) / changes / members, 1)
        costs[changes] = round(nodes.link_bytes() - before - per_s * (time.monotonic() - since))
        for page in pages:
            page.close()
        nodes.until(nodes.a, members)
    row["link_bytes_for_joins"] = costs
    row["page_bytes_for_a_join"] = of_pages

    left = _of(crowd, nodes.a, members, processes)
    start = time.monotonic()
    os.kill(nodes.b.pid, signal.SIGKILL)
    row["killed_nodes_members_gone_s"] = round(nodes.until(nodes.a, left) - start, 3)
    for _, control, process in crowd:
        control.send(None)
        process.join()
    for node in (nodes.b, nodes.c, nodes.a):
        node.stop()
    return row


def _of(crowd: list[Any], node: Node, members: int, processes: int) -> int:
    ends = [
        members * (number + 1) // processes - members * number // processes for number in range(processes)
    ]
    return sum(count for count, (of, _, _) in zip(ends, crowd, strict=True) if of is node)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    args = parser.parse_args()
    if BUILD_PROFILE == "debug":
        raise SystemExit("a debug build measures nothing")
    with tempfile.TemporaryDirectory() as directory:
        row = measure(args.members, args.processes, Path(directory))
    print(json.dumps({"profile": BUILD_PROFILE, "machine": describe(), **row}, default=str))


if __name__ == "__main__":
    main()
