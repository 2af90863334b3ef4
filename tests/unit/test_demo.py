"""The events that `hubsub demo generate` prints."""

import itertools
import json
from collections import Counter

from command_line import hubsub

from hubsub.cli.demo import events, reports


def test_the_generator_gives_the_same_events_for_the_same_seed() -> None:
    first, again = list(events(500, 20, 50, seed=4)), list(events(500, 20, 50, seed=4))
    assert first == again != list(events(500, 20, 50, seed=5))
    assert [e["n"] for e in first] == list(range(500))
    assert {tuple(e) for e in first} == {("n", "room", "user", "ts", "kind", "text")}
    sizes = sorted(
        (sum(e["room"] == room for e in first) for room in {e["room"] for e in first}), reverse=True
    )
    assert len(sizes) <= 20 and sizes[0] > 3 * sizes[-1]


def test_generated_people_come_speak_and_go_in_the_order_of_time() -> None:
    log = list(events(5_000, 30, 200))
    assert [e["ts"] for e in log] == sorted(e["ts"] for e in log)
    kinds = Counter(e["kind"] for e in log)
    assert kinds["message"] > 4_000 and kinds["join"] > kinds["leave"] > 100 and kinds["action"] > 100
    joined: Counter[tuple[str, str]] = Counter()
    unseen = 0
    for event in log:
        who = event["room"], event["user"]
        joined[who] += event["kind"] == "join"
        unseen += joined[who] == 0
    assert 0 < unseen < 500, "those that were there before the log began, and no others, speak without a join"


def test_generated_devices_report_once_a_minute_each_in_its_turn() -> None:
    first = list(reports(600, 10, seed=4))
    assert first == list(reports(600, 10, seed=4)) != list(reports(600, 10, seed=5))
    of_one = [report for report in first if report["device"] == "thermostat-03"]
    assert [report["ts"][11:] for report in of_one[:3]] == ["00:00:18Z", "00:01:18Z", "00:02:18Z"]
    assert len(of_one) == 60 and all(5 < report["temperature"] < 30 for report in first)
    for before, after in itertools.pairwise(of_one):
        if before["state"] == "heating":
            assert after["temperature"] > before["temperature"] - 0.2
    assert {report["state"] for report in reports(5_000, 10)} == {"idle", "heating", "fault"}
    run = hubsub("demo", "generate", "--events", "3", "--devices", "2")
    topics = [json.loads(line)["topic"] for line in run.stdout.splitlines()]
    assert topics == [f"devices/thermostat-{n}/state" for n in ("00", "01", "00")]
