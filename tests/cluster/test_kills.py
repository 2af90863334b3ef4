"""Nodes are killed and restarted while clients publish and subscribe, in rounds; every third round kills the
controller.

A few rounds over the embedded coordinator; with KILL_ROUNDS (`make soak`) that many over each kind. KILL_SEED
repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clients.raw import Connection, Frame
from clients.servers import until

from cluster.cluster import NAMES, Cluster
from cluster.witness import Witness
from hubsub.testing.stores import STORES

pytestmark = pytest.mark.needs("hubsub-core")

SOAKS = "KILL_ROUNDS" in os.environ
ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
SEED = int(os.environ.get("KILL_SEED", random.randrange(1 << 32)))

PACE_S = 0.01
"""Pause between two records of a publisher: the test is about correctness, not throughput."""
ENOUGH = 10
"""Acknowledged records of each publisher and room before the next step."""
PAGE = 5_000


@pytest.fixture(params=["embedded", "etcd", "zookeeper"] if SOAKS else ["embedded"])
def killed(request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    kind = str(request.param)
    needs("hubsub-core", *([] if kind == "embedded" else [kind]))
    with ExitStack() as stack:
        url = None
        if kind != "embedded":
            (tmp_path / "store").mkdir()
            members = stack.enter_context(STORES[kind](tmp_path / "store"))
            url = members.url(members.ports, "tests", "5s")
        yield stack.enter_context(Cluster(tmp_path, url))


class Publisher(threading.Thread):
    """Publishes numbered records to rooms in turn, until it is stopped or its node dies; collects what was
    acknowledged."""

    def __init__(self, cluster: Cluster, on: str, label: str, rooms: list[str]) -> None:
        super().__init__(daemon=True)
        self.on, self.label, self.client = on, label, cluster.connect(on)
        self.ends = threading.Event()
        self.taken: dict[str, list[int]] = {room: [] for room in rooms}
        self.start()

    def run(self) -> None:
        number = 0
        while not self.ends.wait(PACE_S):
            number += 1
            for room, taken in self.taken.items():
                try:
                    answer = self.client.ask("PUBLISH", room, f"{self.label} {number}")
                except (EOFError, ConnectionError):
                    return
                if not isinstance(answer, Frame):
                    taken.append(number)

    def goes_on(self) -> Callable[[], bool]:
        """Returns a check whether every room has accepted `ENOUGH` more records from this publisher."""
        before = {room: len(taken) for room, taken in self.taken.items()}
        return lambda: all(len(taken) >= before[room] + ENOUGH for room, taken in self.taken.items())

    def end(self) -> None:
        self.ends.set()
        self.join(60)
        assert not self.is_alive()
        self.client.close()


class Watching(threading.Thread):
    """Reads for a witness until its rooms have ended, or its node dies."""

    def __init__(self, cluster: Cluster, on: str, rooms: list[str]) -> None:
        super().__init__(daemon=True)
        self.on, self.witness = on, Witness(cluster.connect(on), *rooms)
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.witness.read_to("end 0")
        except (EOFError, ConnectionError):
            pass
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self.join(60)
        assert not self.is_alive() and self.failure is None, self.failure
        self.witness.client.close()


def test_whoever_is_killed_order_holds_and_what_is_missing_is_told(killed: Cluster) -> None:
    print(f"KILL_SEED={SEED}")
    choice = random.Random(SEED)
    killed.settled()
    rooms = [killed.room_led_by(name, f"chat:{number}-") for name in NAMES for number in range(2)]
    logged = [killed.room_led_by(name, "log:") for name in sorted(set(killed.leaders("a", "logged")))]
    publishers: list[Publisher] = []
    watching: list[Watching] = []

    def begin(name: str) -> None:
        watching.append(Watching(killed, name, rooms + logged))
        label = f"{name}{len(publishers)}"
        publishers.append(Publisher(killed, name, label, rooms))
        publishers.append(Publisher(killed, name, f"{label}-logged", logged))

    def all_go_on(names: list[str], of_logged: bool) -> None:
        running = [one for one in publishers if one.on in names and one.is_alive()]
        for went_on in [one.goes_on() for one in running if of_logged or not one.taken.keys() & set(logged)]:
            until(went_on, "rooms go on")

    for name in NAMES:
        begin(name)
    for number in range(ROUNDS):
        all_go_on(list(NAMES), of_logged=True)
        controller = killed.status(choice.choice(NAMES))["controller"]
        others = [name for name in NAMES if name != controller]
        dies = controller if number % 3 == 0 else choice.choice(others)
        print(f"round {number}: {dies}" + (" is the controller" if dies == controller else ""))
        killed.kill(dies)
        all_go_on([name for name in NAMES if name != dies], of_logged=False)
        killed.start(dies)
        killed.settled()
        begin(dies)
    all_go_on(list(NAMES), of_logged=True)
    for publisher in publishers:
        publisher.end()
    with killed.connect("a") as last:
        for room in rooms + logged:
            assert last.ask("PUBLISH", room, "end 0") == len(NAMES)
    for one in watching:
        one.end()
        one.witness.check()
        for room in rooms + logged:
            check_told(one.witness, room, {p.label: p.taken[room] for p in publishers if room in p.taken})
    for name in NAMES:
        with killed.connect(name) as client:
            for room in logged:
                kept = history(client, room)
                assert len(kept) == len(set(kept)), "each once"
                taken = {f"{p.label} {n}" for p in publishers for n in p.taken.get(room, [])}
                assert taken <= set(kept), f"{room} has lost {sorted(taken - set(kept))[:5]}"


def check_told(witness: Witness, room: str, taken: dict[str, list[int]]) -> None:
    """Checks that a publisher's records arrive in order, and that a gap notification replaces each
    acknowledged one that is missing."""
    last: dict[str, int] = {}
    gaps: dict[str, int] = {}
    told = 0
    for heard in witness.heard[room]:
        if heard.payload is None:
            told += 1
            continue
        label, _, digits = heard.payload.partition(" ")
        number, before = int(digits), last.get(label)
        if before is not None:
            assert before < number, f"{room}: {label} {before} before {number}"
            missing = [n for n in taken[label] if before < n < number]
            assert not missing or told > gaps[label], f"{room}: {label} {missing[:5]} missing, untold"
        last[label], gaps[label] = number, told


def history(client: Connection, room: str) -> list[str]:
    """All payloads of a room's history."""
    payloads: list[str] = []
    after: list[bytes | str] = []
    while True:
        rows = client.ask("HUBSUB", "HISTORY", room, "COUNT", PAGE, *after)
        assert isinstance(rows, list), rows
        payloads += [row[4].decode() for row in rows]
        if len(rows) < PAGE:
            return payloads
        after = ["AFTER", rows[-1][0]]
