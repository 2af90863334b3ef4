"""Values of `$SYS`, computed from two successive snapshots of a node."""

import math

import pytest

pytest.importorskip("hubsub._core", reason="needs hubsub-core")

from hubsub.control.sys_topics import COUNTERS, GAUGES, Loads, Measurement, items, values

EVERYTHING = {name for _, names in GAUGES for name in names} | {
    name for _, _, names in COUNTERS for name in names
}


def measure(clock_s: float, **metrics: int) -> Measurement:
    return Measurement(clock_s, dict.fromkeys(EVERYTHING, 0) | metrics)


def test_values_have_the_names_that_brokers_have_for_them() -> None:
    now = measure(
        90.0,
        mqtt_connections=3,
        mqtt_sessions_offline=2,
        mqtt_subscriptions=7,
        retained_messages=5,
        mqtt_packets_total=11,
        mqtt_unsent_total=1,
        dropped_total=4,
    )
    told = values(now, 90.9, 9, Loads())
    assert told["uptime"] == "90 seconds"
    assert told["version"].startswith("hubsub version ")
    assert (told["clients/connected"], told["clients/disconnected"], told["clients/total"]) == ("3", "2", "5")
    assert (told["clients/maximum"], told["subscriptions/count"], told["retained messages/count"]) == (
        "9",
        "7",
        "5",
    )
    assert (told["messages/received"], told["publish/messages/dropped"]) == ("11", "5")


def test_what_the_node_does_not_count_is_not_told() -> None:
    told = values(Measurement(0.0, {"mqtt_connections": 3}), 0.0, 3, Loads())
    assert set(told) == {"version", "uptime", "clients/connected", "clients/total", "clients/maximum"}
    assert told["clients/total"] == "3"


def test_a_steady_stream_is_the_load_of_every_average_in_the_end() -> None:
    loads = Loads()
    for second in range(0, 7_200, 10):
        loads.take(
            measure(second, mqtt_packets_total=second), measure(second + 10, mqtt_packets_total=second + 10)
        )
    assert all(
        loads.averages[f"load/messages/received/{minutes}min"] == pytest.approx(60, rel=0.001)
        for minutes in (1, 5, 15)
    )


def test_what_is_long_ago_counts_less_in_the_short_averages() -> None:
    loads = Loads()
    loads.take(measure(0), measure(60, mqtt_published_total=600))
    loads.take(measure(60), measure(120))
    expected = {
        minutes: 600 * (1 - math.exp(-1 / minutes)) * math.exp(-1 / minutes) for minutes in (1, 5, 15)
    }
    assert {
        minutes: loads.averages[f"load/publish/received/{minutes}min"] for minutes in (1, 5, 15)
    } == pytest.approx(expected)


def test_no_time_between_looks_is_no_load() -> None:
    loads = Loads()
    loads.take(measure(5.0), measure(5.0, mqtt_packets_total=9))
    assert loads.averages == {}


def test_values_are_messages_below_their_root() -> None:
    (item,) = items("$SYS/broker/n1", {"clients/total": "4"})
    assert (item.topic, item.payload) == (b"$SYS/broker/n1/clients/total", b"4")
