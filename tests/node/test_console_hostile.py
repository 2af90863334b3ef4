"""Client data is text on every page of the console: none is parsed as markup, and no script in it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest
from boundary.test_node import ask
from browser import Tab, chromium, tab
from clients.mqtt import V5, Paho, properties
from clients.phoenix import Page
from clients.raw import Connection
from paho.mqtt.packettypes import PacketTypes
from playwright.sync_api import Browser, expect

from hubsub.config import split_address
from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core", "chromium")

EVIL = "\"><img src=x onerror=alert(1)><script>alert(2)</script>'+alert(3)+'&lt;b>\u202e"
SHOWN = EVIL.replace("\u202e", "\\u202e")
WORD = "<img/src=x/onerror=alert(4)>"
"""Redis allows no spaces in names."""
ID = "<b onmouseover=alert(5)>%5C"
"""A device id: one topic level."""
ROOM_ID = ID.replace("%", "%25")
"""The id as room names are displayed: bytes that are not text are escaped, and so is the escape character."""

CLASSES = [
    {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}},
    {"name": "devices", "match": ["devices/*"], "device": "devices/{device}/#", "history": {"messages": 10}},
]


@pytest.fixture(scope="module")
def browser(needs: Callable[..., None]) -> Iterator[Browser]:
    needs("chromium")
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def node(needs: Callable[..., None]) -> Iterator[Node]:
    """A node where everything that a client can name has a hostile name."""
    needs("hubsub-core")
    listeners = {"ws": "127.0.0.1:0", "mqtt": "127.0.0.1:0"}
    with Node(classes=CLASSES, config=listeners) as node, ExitStack() as open_ones:
        redis = open_ones.enter_context(Connection(*node.redis))
        redis.ask("CLIENT", "SETNAME", WORD)
        redis.ask("CLIENT", "SETINFO", "LIB-NAME", WORD)
        for room in (f"chat:{EVIL}", "chat:__proto__", "chat:constructor"):
            redis.ask("PUBLISH", room, EVIL)
        first, second = (open_ones.enter_context(Page(node.ws)) for _ in range(2))
        first.join(f"chat:{EVIL}", {"presence": {"key": EVIL, "meta": {"name": EVIL, EVIL: [EVIL, None]}}})
        second.join("chat:__proto__", {"presence": {"key": "__proto__", "meta": {"name": 7}}})
        session = properties(PacketTypes.CONNECT, {"SessionExpiryInterval": 600})
        device = Paho(split_address(node.ready["mqtt"]), V5, ID, properties=session, clean=False)
        open_ones.enter_context(device)
        headers = properties(PacketTypes.PUBLISH, {"UserProperty": (EVIL, EVIL)})
        device.publish(f"devices/{ID}/state", EVIL.encode(), 1, properties=headers)
        ask(node, "PUT", f"/v1/queries/{quote(EVIL, safe='')}", {"offsets": {}})
        yield node


@pytest.fixture
def console(browser: Browser, node: Node) -> Iterator[Tab]:
    with tab(browser, node.http_url) as one:
        yield one
        for tag in ("img", "script", "b[onmouseover]"):
            assert one.page.locator(f"main {tag}").count() == 0
        one.check()


def test_names_of_rooms_are_text(console: Tab) -> None:
    page = console.open("rooms")
    rooms = page.get_by_role("table", name="Rooms in order of name")
    for name in (f"chat:{SHOWN}", "chat:__proto__", "chat:constructor", f"devices/{ROOM_ID}/state"):
        expect(rooms.get_by_role("link", name=name, exact=True)).to_be_visible()
    page.goto(f"{console.url}/#/")
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()


def test_a_room_its_records_and_who_is_in_it_are_text(console: Tab) -> None:
    page = console.open(f"room/{quote(f'chat:{EVIL}', safe='')}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"chat:{SHOWN}")
    here = page.get_by_role("table", name="Members")
    expect(here.get_by_role("rowheader")).to_have_text(SHOWN)
    said = json.dumps({"name": EVIL, EVIL: [EVIL, None]}, ensure_ascii=False, separators=(",", ":"))
    expect(here.get_by_role("cell")).to_have_text([SHOWN, said.replace("\u202e", "\\u202e")])
    expect(page.get_by_role("cell", name=SHOWN, exact=True).and_(page.locator(".payload"))).to_be_visible()


def test_a_key_that_javascript_has_for_itself_is_one_like_others(console: Tab) -> None:
    page = console.open("room/chat%3A__proto__")
    expect(page.get_by_role("table", name="Members").get_by_role("rowheader")).to_have_text("__proto__")


def test_headers_are_text(console: Tab) -> None:
    page = console.open(f"room/{quote(f'devices/{ROOM_ID}/state', safe='')}")
    expect(page.locator("td.headers")).to_contain_text(f"{SHOWN}: {SHOWN}")


def test_names_of_clients_sessions_and_devices_are_text(console: Tab) -> None:
    page = console.open("clients")
    expect(page.get_by_role("cell", name=WORD)).to_have_count(2)
    sessions = page.get_by_role("table", name="MQTT sessions")
    expect(sessions.get_by_role("rowheader", name=ID, exact=True)).to_be_visible()
    page.goto(f"{console.url}/#/devices")
    expect(page.get_by_role("rowheader", name=ID, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=f"devices/{ROOM_ID}/state", exact=True)).to_be_visible()


def test_names_of_queries_are_text(console: Tab) -> None:
    page = console.open("spark")
    queries: Any = page.get_by_role("table", name="Queries")
    expect(queries.get_by_role("rowheader", name=SHOWN, exact=True)).to_be_visible()
    expect(page.locator(".legend")).to_contain_text("<script>alert(2)</script>")
