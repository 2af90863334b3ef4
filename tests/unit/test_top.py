"""`hubsub top`: the display of the nodes' reports."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from command_line import hubsub
from rich.console import Console

from hubsub.cli.top.view import SHARD_COLUMNS, view

from .http_server import http_server

ALONE: dict[str, Any] = {
    "at": 1.0,
    "url": "u",
    "stat": {"name": "a", "version": "1", "uptime_s": 1.0, "shards": []},
    **{part: [] for part in ("nodes", "clients", "rooms", "queries", "blocked", "hubs", "moves", "wrong")},
    "members": {},
}
"""A snapshot of a single node without any data."""


def shown(now: dict[str, Any], before: dict[str, Any] | None, width: int, height: int | None = None) -> str:
    out = StringIO()
    Console(file=out, width=width).print(view(now, before, width, height))
    return out.getvalue()


def node(name: str, published: int = 0, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("connections", "rooms", "delivered_total"), 7) | {"published_total": published}
    known = {"state": "up", "incarnation": 5, "hubs_led": 3, "resident_bytes": 2**21, "uptime_s": 10.0}
    return {"name": name, "counts": counts, "cpu_s": 1.0, "reasons": [], "peers": [], **known, **more}


@pytest.mark.parametrize("width", [20, 80, 1000])
def test_the_columns_that_fit_are_shown_with_whole_heads(width: int) -> None:
    shard = dict.fromkeys(SHARD_COLUMNS.values(), 10)
    look = ALONE | {"stat": ALONE["stat"] | {"shards": [shard]}}
    later = look | {"at": 2.0, "stat": ALONE["stat"] | {"shards": [dict.fromkeys(shard, 10_000_020)]}}
    out = shown(later, look, width)
    (head,) = [line for line in out.splitlines() if line.startswith("shard")]
    assert "…" not in head and "clients" in head
    assert ("slow closed/s" in head) == (width == 1000)
    assert ("routing" in head) == (width >= 80)
    if width == 1000:
        assert "10,000,010" in out and " 1%" in out


def test_nodes_have_their_rates_and_what_is_wrong_and_those_that_are_dead_stand_there() -> None:
    before = ALONE | {"nodes": [node("a", 100), node("b", 100)]}
    again = node("b", 9, incarnation=6, reasons=["its log is full: no room"])
    later = ALONE | {
        "nodes": [node("a", 700, uptime_s=12.0, cpu_s=2.0), again],
        "members": {"a": "up", "b": "up", "c": "dead"},
        "wrong": ["node c: dead"],
    }
    out = shown(later, before, 120)
    lines = [line.split() for line in out.splitlines()]
    assert ["a", "up", "3", "7", "300", "0", "50%", "2", "7", "12"] in lines
    assert ["b", "up", "3", "7", "-", "-", "-", "2", "7", "10"] in lines, "it began anew"
    assert ["c", "dead", *"--------"] in lines
    assert "b: its log is full: no room" in out and "node c: dead" in out


def test_hubs_are_counted_by_class_and_leader() -> None:
    def hub(name: str, leader: str, proposed: str | None = None) -> dict[str, Any]:
        return {"class": name, "leader": leader, "proposed": proposed}

    rows = [hub("chat", "a"), hub("chat", "b", "a"), hub("chat", "b"), hub("$stats", "a"), hub("$SYS", "a")]
    lines = [line.split("  ") for line in shown(ALONE | {"hubs": rows}, None, 120).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["hubs of class", "all", "to go", "by a", "by b"] in cells
    assert ["chat", "3", "1", "1", "2"] in cells and ["own ($…)", "2", "0", "2", "0"] in cells


def test_links_are_a_line_and_those_that_are_not_up_say_why() -> None:
    def peer(name: str, up: int, **more: Any) -> dict[str, Any]:
        known = {"round_trip_us": 250, "heard_ms": 4_200.0, "reason": None}
        return {"node": name, "links": 2, "up": up, **known, **more}

    well, ill = peer("b", 2), peer("a", 1, reason="the connection ended", round_trip_us=None)
    out = shown(ALONE | {"nodes": [node("a", peers=[well]), node("b", peers=[ill])]}, None, 120)
    assert "links  3 of 4 up, slowest round trip 0.2 ms" in out
    rows = [line.split() for line in out.splitlines() if " of 2" in line]
    assert rows == [["b", "a", "1", "of", "2", "4", "s", "ago", "the", "connection", "ended"]]


def test_a_failover_is_one_line_and_a_room_that_was_moved_one_of_its_own() -> None:
    def note(ago_s: float, **more: Any) -> dict[str, Any]:
        of_hub = {
            "room": None,
            "class": "chat",
            "hub": 1,
            "leader": "a",
            "why": "dead",
            "words": "its leader is dead",
        }
        return {**of_hub, "result": "moved", "reason": None, "ago_s": ago_s, **more}

    moved = note(1.0, room="chat:x", leader="b", why="asked for", words="asked for")
    refused = moved | {"result": "refused", "reason": "no room there"}
    dead = [note(60.5), note(60.1), note(60.0, leader="b"), note(60.0, **{"class": "$stats"})]
    out = shown(ALONE | {"moves": [note(90.0), *dead, moved, refused]}, None, 120)
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    start = cells.index(["when", "what", "to", "why"]) + 1
    assert cells[start:] == [
        ["1 s ago", "room chat:x", "b", "asked for; refused: no room there"],
        ["1 s ago", "room chat:x", "b", "asked for"],
        ["1 min ago", "hubs: 3 of chat, 1 of own ($…)", "a, b", "its leader is dead"],
        ["1 min ago", "hub 1 of chat", "a", "its leader is dead"],
    ]


def test_queries_say_how_they_are_and_how_far_behind() -> None:
    def query(name: str, **more: Any) -> dict[str, Any]:
        known = {"lag": 0, "rows_per_second": 3.14159, "silence_s": 4.0, "ended": False}
        return {"query": name, **known, **more}

    found = [query("a"), query("b", lag=1_234), query("c", silence_s=400.0), query("d", ended=True)]
    held = [{"query": "e", "reason": "the disk is full"}]
    out = shown(ALONE | {"queries": found, "blocked": held}, None, 120)
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    assert cells[-5:] == [
        ["a", "has all", "0", "3.1", "4 s ago"],
        ["b", "reads", "1,234", "3.1", "4 s ago"],
        ["c", "silent", "0", "3.1", "6 min ago"],
        ["d", "ended", "0", "3.1", "4 s ago"],
        ["e", "a batch is blocked", "-", "-", "-", "the disk is full"],
    ]


def test_a_low_terminal_shows_fewer_rooms_and_clients() -> None:
    rooms = [{"name": f"room-{n}", "messages_per_second": n} for n in range(50)]
    for height, most in ((None, 50), (200, 50), (60, 26), (10, 3)):
        assert shown(ALONE | {"rooms": rooms}, None, 80, height).count("room-") == most, height


def test_what_clients_sent_does_not_reach_the_terminal_as_it_is() -> None:
    sent = "\x1b[2J[bold]x[/bold]"
    out = shown(ALONE | {"rooms": [{"name": sent, "messages_per_second": 1.0}]}, None, 80)
    assert "\x1b" not in out and "\\x1b[2J[bold]x[/bold]" in out


def test_to_a_pipe_it_prints_one_look_and_ends() -> None:
    empty = ("shards", "nodes", "clients", "rooms", "queries", "blocked", "hubs", "moves", "wrong")
    stat = {"name": "n1", "version": "1", "uptime_s": 1.0, "voters": None, **{part: [] for part in empty}}
    with http_server(200, json.dumps(stat).encode()) as url:
        run = hubsub("top", "--interval", "0.2", "--url", url)
    assert (run.returncode, run.stderr, run.stdout.count("n1  http://")) == (0, "", 1)
