"""Any node accepts or refuses moves of rooms, and all nodes find a moved room. Publishers and subscribers
lose no record without a gap notification."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from clients.raw import TIMEOUT_S, Connection, Frame
from clients.servers import until

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

BETWEEN_MOVES = 20
"""Answered publishes on each node between two moves."""


def move(cluster: Cluster, by: str, room: str, to: str | None) -> tuple[int, dict[str, Any]]:
    """Asks a node to move a room; returns status and JSON of the response."""
    url = f"{cluster.nodes[by].http_url}/v1/rooms/{quote(room, safe='')}/move"
    request = urllib.request.Request(url, json.dumps({"to": to}).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Publisher:
    """Publishes numbers, each after the response to the previous one, until `end` is called."""

    def __init__(self, cluster: Cluster, name: str, room: str) -> None:
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self._name, self._room = name, room
        self._client = cluster.connect(name)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            payload = f"{self._name}:{number}".encode()
            answer = self._client.ask("PUBLISH", self._room, payload)
            if isinstance(answer, Frame):
                self.refused.append(str(answer))
            else:
                self.acknowledged.append(payload)

    def end(self) -> None:
        """Returns after the response to the last publish."""
        self._ends.set()
        self._thread.join()
        self._client.close()


def gathered(
    subscriber: Connection, last: bytes
) -> tuple[list[tuple[bytes, str, int]], list[tuple[str, int, int]]]:
    """Reads up to a payload. Returns, in order: payload, epoch and seq of records; epoch, first and last seq
    of gaps (0: all from `first` on)."""
    records: list[tuple[bytes, str, int]] = []
    gaps: list[tuple[str, int, int]] = []
    while True:
        frame = subscriber.read().plain()
        assert isinstance(frame, list), frame
        if frame[0] == b"gap":
            epoch, _, first = frame[2].decode().partition("-")
            gaps.append((epoch, int(first), int(frame[3].decode().partition("-")[2])))
            continue
        epoch, _, seq = frame[3].decode().partition("-")
        records.append((frame[2], epoch, int(seq)))
        if frame[2] == last:
            return records, gaps


def untold(records: list[tuple[bytes, str, int]], gaps: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Positions that are missing without a gap notification, in the epochs that appeared; seq 0: an epoch
    ended without one."""

    def is_told(epoch: str, seq: int) -> bool:
        return any(of == epoch and first <= seq and (last == 0 or seq <= last) for of, first, last in gaps)

    epochs = list(dict.fromkeys(epoch for _, epoch, _ in records))
    missing = []
    for epoch in epochs:
        seqs = [seq for _, of, seq in records if of == epoch]
        begins = seqs[0] if epoch == epochs[0] else 1
        missing += [
            (epoch, seq)
            for seq in range(begins, seqs[-1])
            if seq not in set(seqs) and not is_told(epoch, seq)
        ]
        if epoch != epochs[-1] and not any(of == epoch and last == 0 for of, _, last in gaps):
            missing.append((epoch, 0))
    return missing


@pytest.mark.parametrize("prefix", ["chat:moved-", "busy:moved-", "plain:moved-"])
def test_what_a_subscriber_of_a_moved_room_lacks_is_told_and_nothing_comes_twice_or_swapped(
    three: Cluster, prefix: str
) -> None:
    three.settled()
    room = f"{prefix}{three.coordinator is None}"
    subscribers = [three.connect(name, 3) for name in NAMES]
    for subscriber in subscribers:
        subscriber.call("HUBSUB", "POSITIONS", "ON")
        subscriber.call("SUBSCRIBE", room)
    before = three.leader_of(room)
    away = [name for name in NAMES if name != before]
    publishers = [Publisher(three, name, room) for name in NAMES]
    try:
        # Move around, then twice or more at once, without waiting in between.
        for moves in ([away[0]], [away[1]], [before], [away[0], before], [away[1], away[0], before]):
            for publisher in publishers:
                count = len(publisher.acknowledged) + BETWEEN_MOVES
                until(lambda p=publisher, c=count: len(p.acknowledged) >= c)  # type: ignore[misc]
            for by, to in zip(NAMES, moves, strict=False):
                code, answer = move(three, by, room, to)
                assert (code, answer.get("room")) == (200, room), answer
            for name in NAMES:
                until(lambda name=name, to=moves[-1]: three.leader_of(room, name) == to)  # type: ignore[misc]
    finally:
        for publisher in publishers:
            publisher.end()
    assert [publisher.refused for publisher in publishers] == [[], [], []]
    with three.connect("b") as client:
        until(lambda: client.ask("PUBSUB", "NUMSUB", room) == [room.encode(), len(subscribers)])
        assert client.ask("PUBLISH", room, "end") == len(subscribers)
    for subscriber in subscribers:
        records, gaps = gathered(subscriber, b"end")
        assert untold(records, gaps) == []
        payloads = [payload for payload, _, _ in records]
        assert len(set(payloads)) == len(payloads), "none comes twice"
        for (_, epoch, seq), (_, later, after) in pairwise(records):
            assert epoch != later or seq < after
        for publisher in publishers:
            own_name = publisher.acknowledged[0].partition(b":")[0]
            own = [
                int(payload.partition(b":")[2]) for payload in payloads if payload.startswith(own_name + b":")
            ]
            assert own == sorted(own)
            assert gaps or not set(publisher.acknowledged) - set(payloads)
        subscriber.close()


def test_what_cannot_be_moved_is_refused_with_a_reason_and_that_is_listed(three: Cluster) -> None:
    leader = three.leaders("a", "logged")[0]
    for room, to, text in [
        ("log:stays", leader, "a room with a log cannot be moved yet: class logged"),
        ("chat:stays", "nobody", "the node leads no hub of the room's class: nobody, class chat"),
        ("busy:stays", None, "a room without a ring must go somewhere"),
    ]:
        code, answer = move(three, "b", room, to)
        assert (code, answer["code"], answer["message"]) == (409, "room_move", text)
        assert room == "log:stays" or answer["hint"]
        rows = three.get("c", "/v1/moves")[1]["moves"]
        assert (rows[-1]["room"], rows[-1]["result"], rows[-1]["reason"]) == (room, "refused", text)


def test_a_room_is_found_or_placed_by_any_node_and_one_that_is_not_is_an_error(three: Cluster) -> None:
    for name in NAMES:
        for prefix in ("chat:", "busy:"):
            room = f"{prefix}asked-{name}"
            code, answer = three.get(name, f"/v1/rooms/{room}")
            assert (code, answer["code"]) == (404, "no_such_room") and answer["hint"]
            code, answer = three.post(name, f"/v1/rooms/{room}")
            assert code == 200, answer
            leader = answer["nodes"][0]
            assert leader["name"] == three.leader_of(room)
            assert {key: leader[key] for key in ("redis", "http")} == {
                key: three.addresses[leader["name"]][key] for key in ("redis", "http")
            }
            with three.connect(name) as client:
                located = client.ask("HUBSUB", "LOCATE", room)
            assert located == [[row["name"].encode(), row["redis"].encode()] for row in answer["nodes"]]
