"""The console of one node in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from boundary.test_node import ask
from browser import Tab, chromium, tab
from clients.phoenix import Page
from clients.raw import Connection
from playwright.sync_api import Browser, Locator, Route, expect
from playwright.sync_api import Page as PlaywrightPage

from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core", "chromium")

CHAT = {"name": "chat", "match": ["chat:*"], "history": {"messages": 1_000}}
PLACES = ("", "rooms", "room/chat%3Awide", "clients", "devices", "spark")

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser(needs: Callable[..., None]) -> Iterator[Browser]:
    needs("chromium")
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def chat(needs: Callable[..., None]) -> Iterator[Node]:
    """One node for all tests of this file; each test uses its own rooms."""
    needs("hubsub-core")
    with Node(classes=[CHAT]) as node:
        yield node


@pytest.fixture
def console(browser: Browser, chat: Node) -> Iterator[Tab]:
    with tab(browser, chat.http_url) as one:
        yield one


def test_a_record_arrives_in_the_tail_without_a_reload(console: Tab, chat: Node) -> None:
    with Connection(*chat.redis) as client:
        client.ask("PUBLISH", "chat:a", "the first")
        page = console.open("room/chat%3Aa")
        expect(page.get_by_text("the first")).to_be_visible()
        page.evaluate("globalThis.isSamePage = true")
        client.ask("PUBLISH", "chat:a", "the second")
        expect(page.get_by_text("the second")).to_be_visible()
        client.ask("PUBLISH", "chat:a", b"\xff\x00\x01")
        expect(page.get_by_text("binary, 3 B: ff 00 01")).to_be_visible()
        client.ask("PUBLISH", "chat:a", "x" * 5_000)
        expect(page.get_by_text("x" * 1_024 + "… (4.9 KiB)")).to_be_visible()
    assert page.evaluate("globalThis.isSamePage") is True
    expect(page.locator("dl").first).to_contain_text("4")
    console.check()


def test_what_clients_sent_is_text_and_nothing_else(console: Tab, chat: Node) -> None:
    room = f"chat:{EVIL}"
    with Connection(*chat.redis) as client:
        client.ask("CLIENT", "SETNAME", "<b>name</b>")
        client.ask("PUBLISH", room, f"{EVIL}\u202e")
        page = console.open("rooms")
        page.get_by_role("table", name="Rooms in order of name").get_by_role("link", name=room).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(room)
        expect(page.get_by_role("cell", name=f"{EVIL}\\u202e")).to_be_visible()
        page.goto(f"{console.url}/#/clients")
        expect(page.get_by_role("cell", name="<b>name</b>")).to_be_visible()
    assert page.locator("main img, main b").count() == 0
    console.check()


def test_a_room_is_found_whatever_its_name_is(console: Tab, chat: Node) -> None:
    with Connection(*chat.redis) as client:
        client.ask("PUBLISH", b"chat:\xff/%41?#&\xc3\xbc", "found")
        page = console.open("rooms")
        page.get_by_role("link", name="chat:%FF/%2541?#&ü").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("chat:%FF/%2541?#&ü")
        expect(page.get_by_role("cell", name="found")).to_be_visible()
        page.reload()
        expect(page.get_by_role("cell", name="found")).to_be_visible()
        page.goto(page.url.replace("#/room/", "#/rooms/"))
        expect(page.get_by_role("heading", level=1)).to_have_text("chat:%FF/%2541?#&ü")
        page.goto(f"{console.url}/#/rooms")
        expect(page.get_by_role("heading", level=1)).to_have_text("Rooms")
    console.check()


def test_who_hears_nothing_says_so_and_comes_back(console: Tab, chat: Node) -> None:
    page = console.open()
    heard = page.locator("#heard")
    os.kill(chat.pid, signal.SIGSTOP)
    try:
        expect(heard).to_have_text(re.compile(r"stale since \d\d:\d\d:\d\d"))
        expect(page.locator("body")).to_have_class("stale")
        expect(page.get_by_role("heading", name="Not known now")).to_be_visible()
        expect(page.get_by_role("heading", name="All is well")).to_have_count(0)
    finally:
        os.kill(chat.pid, signal.SIGCONT)
    expect(heard).to_have_text("live")
    expect(page.get_by_role("heading", name="All is well")).to_be_visible()
    expect(page.locator("body")).not_to_have_class("stale")
    console.check()


def test_all_can_be_done_by_keys_and_the_focus_is_seen(console: Tab) -> None:
    page = console.open()
    focused = page.locator(":focus")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Skip to the content")
    assert focused.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(focused.text_content())
    assert names == ["HubSub", "Cluster", "Rooms", "Clients", "Devices", "Spark", "Theme: system"]
    page.get_by_role("link", name="Rooms").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Rooms")
    expect(focused).to_have_attribute("id", "main")
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("id", "main")
    assert page.url.endswith("#/rooms"), "it stays where it is"
    console.check()


def test_the_theme_is_the_systems_until_one_is_chosen_which_is_remembered(
    browser: Browser, chat: Node
) -> None:
    with tab(browser, chat.http_url, color_scheme="dark") as console:
        page = console.open()
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(ground)
        assert dark != light
        page.get_by_role("button", name="Theme").click()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate(ground) == dark
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate(ground) == dark
        console.check()


def test_no_page_is_wider_than_a_phone(browser: Browser, chat: Node) -> None:
    with (
        Connection(*chat.redis) as client,
        tab(browser, chat.http_url, viewport={"width": 360, "height": 740}) as console,
    ):
        client.ask("CLIENT", "SETNAME", "n" * 200)
        client.ask("PUBLISH", "chat:wide", "word " * 50 + "w" * 500)
        client.ask("PUBLISH", f"chat:{'r' * 300}", "x")
        for place in PLACES:
            page = console.open(place)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            if place.startswith("room"):
                expect(page.locator("main")).to_contain_text("chat:")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
        console.check()


def test_a_query_is_shown_with_its_state_and_how_far_it_is_behind_and_the_hubs_of_a_node_alone(
    browser: Browser, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    logged = {"name": "logged", "match": ["log:*"], "durability": "durable", "history": {"bytes": "64MiB"}}
    node = make_node(classes=[logged], config={"node": "solo", "data": str(tmp_path / "data")})
    with Connection(*node.redis) as client:
        for n in range(10):
            client.ask("PUBLISH", "log:a", str(n))
    hubs = ask(node, "GET", "/v1/hubs")[1]["hubs"]
    (hub,) = (hub for hub in hubs if hub["committed"] >= 9)

    def told(offset: int, ended: bool = False) -> None:
        body = {"offsets": {hub["id"]: offset}, "rows_per_second": 7.5, "batch": 3, "ended": ended}
        assert ask(node, "PUT", "/v1/queries/jobs", body)[0] == 204

    with tab(browser, node.http_url) as console:
        told(4)
        page = console.open("spark")
        row = console.row("Queries", "jobs")
        end = hub["committed"] + 1
        expect(row.get_by_role("cell")).to_have_text(
            ["reads", str(end - 4), "7.5", "3", re.compile(" s ago")]
        )
        expect(page.locator(".chart canvas")).to_be_visible()
        expect(page.locator(".legend")).to_have_text(re.compile(f"jobs {end - 4}"))
        told(end)
        expect(row.get_by_role("cell").first).to_have_text("has all")
        told(end, ended=True)
        expect(row.get_by_role("cell").first).to_have_text("ended, had all")
        page.goto(f"{console.url}/#/")
        expect(page.get_by_role("group", name="Hubs of class logged").get_by_role("button")).to_have_count(
            sum(hub["class"] == "logged" for hub in hubs)
        )
        expect(page.locator(".hub").first).to_have_text("S")
        console.check()


def test_each_job_has_a_table_of_its_latest_rows(
    browser: Browser, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    counted = {"name": "counted", "match": ["counted:*"], "occupancy_records": True}
    node = make_node(config={"data": str(tmp_path / "data")}, classes=[counted])

    def told(job: str, rows: list[list[object]], query: str = "q", keys: int = 0, more: int = 0) -> None:
        columns = {"sessions": ["room", "user", "end", "duration_s"], "devices": ["device", "value"]}[job]
        table = {"query": query, "columns": columns, "rows": rows, "keys": keys, "more": more}
        assert ask(node, "PUT", f"/v1/jobs/{job}", table)[0] == 204

    # Nodes' records about a room are no windows of the `activity` job.
    with Connection(*node.redis) as client:
        client.ask("SUBSCRIBE", "$stats/room/counted:a/occupancy", "counted:a")
        while client.read().plain()[0] != b"message":
            pass
    with tab(browser, node.http_url) as console:
        page = console.open("spark")
        expect(page.get_by_text("No job has told any.")).to_be_visible()
        for job in ("sessions", "devices", "archive", "replay"):
            expect(page.get_by_text(f"No job {job} has told any.")).to_be_visible()
        told("sessions", [["chat:z", "zoe", "2026-03-01T12:00:00.000Z", 1]], query="before")
        told("sessions", [["chat:a", EVIL, "2026-03-01T12:00:00.000Z", 61.5]])
        told("sessions", [["chat:b", None, "2026-03-01T12:00:05.000Z", 7]], more=3)
        told("devices", [["cam 1", "old"], ["cam 2", "1"]], keys=1)
        told("devices", [["cam 1", "new"]], keys=1)
        sessions = page.get_by_role("table", name="Sessions that are over")
        expect(sessions.get_by_role("rowheader")).to_have_text(["chat:b", "chat:a"])
        expect(console.row("Sessions that are over", "chat:a").get_by_role("cell")).to_have_text(
            [EVIL, re.compile(r"^2026-0[23]-\d\d \d\d:00:00$"), "62"]
        )
        expect(
            page.get_by_text(re.compile(r"^Reported \d+ s ago by q; 3 more rows are not shown\.$"))
        ).to_be_visible()
        devices = page.get_by_role("table", name="Devices: the latest values")
        expect(devices.get_by_role("cell")).to_have_text(["new", "1"])
        assert page.locator("main img").count() == 0
        console.check()


def test_who_is_in_a_room_is_shown_and_who_leaves_it_is_not(
    browser: Browser, make_node: Callable[..., Node]
) -> None:
    node = make_node(config={"ws": "127.0.0.1:0"}, classes=[CHAT])
    with tab(browser, node.http_url) as console:
        page = console.open("room/chat%3Ahere")
        here = page.get_by_role("table", name="Members")
        expect(page.get_by_text("No members.")).to_be_visible()
        with Page(node.ws) as ann:
            ann.join("chat:here", {"presence": {"key": "7f3a", "meta": {"name": EVIL}}})
            expect(here.get_by_role("rowheader", name=EVIL)).to_be_visible()
            expect(here.get_by_role("cell")).to_have_text(
                ["7f3a", json.dumps({"name": EVIL}, separators=(",", ":"))]
            )
            for name in ("subscribers", "members", "by Phoenix"):
                expect(figure(page, name)).to_have_text("1")
            for name in ("by MQTT", "publishers"):
                expect(figure(page, name)).to_have_text("0")
        expect(here.get_by_role("rowheader")).to_have_count(0)
        assert page.locator("main img").count() == 0
        console.check()


def test_a_room_tells_how_many_hear_it_and_how_they_speak(browser: Browser, chat: Node) -> None:
    """Every value that a node reports is shown; a missing value is a dash."""
    answers: list[dict[str, Any]] = [
        {
            "subscribers": 12,
            "by_protocol": {"redis": 3, "mqtt": 4, "phoenix": 4, "events": 1},
            "publishers": 2,
        },
        {"subscribers": 1, "by_protocol": {"pigeon": 1}, "publishers": None, "members": 5},
        {"subscribers": 0},
    ]
    with tab(browser, chat.http_url) as console:
        console.page.route("**/occupancy", lambda route: route.fulfill(json={"room": "r", **answers[0]}))
        page = console.open("room/chat%3Afull")
        for name, shown in (
            ("subscribers", "12"),
            ("by Redis", "3"),
            ("by events", "1"),
            ("publishers", "2"),
        ):
            expect(figure(page, name)).to_have_text(shown)
        expect(figure(page, "members")).to_have_text("–")
        del answers[0]
        for name, shown in (("subscribers", "1"), ("by pigeon", "1"), ("by MQTT", "0"), ("publishers", "–")):
            expect(figure(page, name)).to_have_text(shown)
        del answers[0]
        for name, shown in (("subscribers", "0"), ("by pigeon", "–"), ("by Phoenix", "–"), ("members", "–")):
            expect(figure(page, name)).to_have_text(shown)
        console.check()


def test_a_row_that_is_aimed_at_stays_where_it_is(browser: Browser, chat: Node) -> None:
    rates = {"chat:a": 3.0, "chat:b": 2.0}

    def answer(route: Route) -> None:
        rooms = [{"name": name, "messages_per_second": rate} for name, rate in rates.items()]
        route.fulfill(
            json={"rooms": sorted(rooms, key=lambda room: -float(str(room["messages_per_second"])))}
        )

    with tab(browser, chat.http_url) as console:
        console.page.route("**/v1/busiest?*", answer)
        page = console.open("rooms")
        rows = page.get_by_role("table", name="Busiest rooms").get_by_role("row")
        expect(rows).to_have_text(["roommessages/s", "chat:a3.0", "chat:b2.0"])
        rows.nth(1).hover()
        rates.update({"chat:b": 9.0, "chat:c": 10})
        expect(rows).to_have_text(["roommessages/s", "chat:a3.0", "chat:b9.0", "chat:c10"])
        page.mouse.move(0, 0)
        expect(rows).to_have_text(["roommessages/s", "chat:c10", "chat:b9.0", "chat:a3.0"])
        console.check()


def figure(page: PlaywrightPage, name: str) -> Locator:
    """The value shown under that label."""
    return page.locator("dl > div").filter(has=page.get_by_text(name, exact=True)).locator("dd")


def test_a_page_that_is_refused_tries_again_by_itself(
    browser: Browser, make_node: Callable[..., Node]
) -> None:
    node = make_node(limits={"console_listeners_max": 1})
    with tab(browser, node.http_url) as first, tab(browser, node.http_url) as second:
        first.open()
        second.page.goto(node.http_url)
        expect(second.page.locator("#heard")).to_have_text("not heard yet")
        first.page.goto("about:blank")
        expect(second.page.locator("#heard")).to_have_text("live")
        assert all("503" in trouble for trouble in second.troubles)
