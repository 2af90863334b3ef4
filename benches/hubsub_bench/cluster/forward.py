"""Row `forward`: a publish at the room's node and at another one, and frames between nodes per message.

Latency: windows in turn (local, away, away, local) on one cluster, one publish in flight, a polling
generator. Frames: with three nodes, a subscriber on each other node but the last, messages one after another;
the frames that the room's node has sent, divided by messages and by those nodes. A broadcast sends more than
one.
"""

from statistics import median

from hubsub_bench import BenchError, load
from hubsub_bench.cluster.places import place
from hubsub_bench.cluster.resp import Connection
from hubsub_bench.cluster.rows import Asked
from hubsub_bench.cluster.subject import Cluster, ClusterTarget, Member, room_name
from hubsub_bench.machine import Cores
from hubsub_bench.scenarios import Figures

RATIO = "p50, away to local"
LOCAL_P50, LOCAL_P99 = "local p50", "local p99"
AWAY_P50, AWAY_P99 = "away p50", "away p99"
FRAMES = "frames a message and node with interest"

NODES = 3
WINDOWS = ("local", "away", "away", "local")
MESSAGES = 1_000
OPENING = b"opening"
"""Message after which frames are counted."""


def measure(target: ClusterTarget, asked: Asked) -> Figures:
    """Runs the row once; returns its figures by name."""
    with target.running(NODES, asked.directory) as cluster:
        asked.version, asked.build_profile = cluster.version, cluster.build_profile
        home, *others = cluster.members()
        number = place(cluster, [home], 1).numbers[0]
        found: dict[str, dict[str, list[float]]] = {kind: {"p50": [], "p99": []} for kind in WINDOWS}
        for index, kind in enumerate(WINDOWS):
            if kind == "away" and target.verb != "publish":
                continue  # Only the slot's node takes it.
            params = {
                "rooms": 1,
                "numbers": number,
                "publish_to": "own",
                "subscribers": 1,
                "publishers": 1,
                "in_flight": 1,
                "publisher_threads": 1,
                "spin": True,
                "seconds": asked.seconds / len(WINDOWS),
                "warmup": asked.warmup,
                "verb": target.verb,
            }
            if kind == "away":
                params["publish_target"] = others[index % len(others)].address
            report = load.run(home.address, None, Cores(frozenset(), frozenset(), 2), params)
            asked.reports.append({**report.raw, "window": kind})
            asked.complaints += report.complaints()
            for name, values in found[kind].items():
                value = report.latency_us(name)
                if value is not None:
                    values.append(value)
        interested = others[:-1]
        frames = _frames(cluster, target, home, interested, number)
    local, away = found["local"], found["away"]

    def middle(values: list[float]) -> float | None:
        return median(values) if values else None

    figures: Figures = {
        LOCAL_P50: middle(local["p50"]),
        LOCAL_P99: middle(local["p99"]),
        AWAY_P50: middle(away["p50"]),
        AWAY_P99: middle(away["p99"]),
        FRAMES: frames,
    }
    near, far = figures[LOCAL_P50], figures[AWAY_P50]
    figures[RATIO] = far / near if near and far is not None else None
    return figures


def _frames(
    cluster: Cluster, target: ClusterTarget, home: Member, interested: list[Member], number: int
) -> float | None:
    """Frames that the room's node sends per message, divided by the nodes with interest."""
    if target.verb != "publish":
        return None  # Subscribers exist only at the slot's node.
    room = room_name(number)
    subscribers = [Connection(member.address) for member in interested]
    try:
        for subscriber in subscribers:
            subscriber.ask("SUBSCRIBE", room)
        with Connection(home.address) as publisher:
            _until_all_hear(publisher, subscribers, room)
            before = cluster.frames(home.name).sent
            for index in range(MESSAGES):
                publisher.ask("PUBLISH", room, index)
                for subscriber in subscribers:
                    _expect(subscriber, str(index).encode())
            return (cluster.frames(home.name).sent - before) / MESSAGES / len(interested)
    finally:
        for subscriber in subscribers:
            subscriber.close()


def _until_all_hear(publisher: Connection, subscribers: list[Connection], room: str) -> None:
    """Sends one message to all: afterwards their interest is known, and nothing of earlier windows is in flight."""
    publisher.ask("PUBLISH", room, OPENING)
    for subscriber in subscribers:
        while _payload(subscriber) != OPENING:
            pass


def _expect(subscriber: Connection, payload: bytes) -> None:
    got = _payload(subscriber)
    if got != payload:
        raise BenchError("a subscriber on another node got something else", repr(got))


def _payload(subscriber: Connection) -> bytes:
    match got := subscriber.read():
        case [b"message", _, bytes(payload), *_]:
            return payload
    raise BenchError("a subscriber got no message", repr(got))
