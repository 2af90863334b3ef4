"""`hubsub demo chat`: pages in a real browser chat over three nodes while nodes are killed."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import pytest
from browser import Tab, chromium, tab
from clients.phoenix import Page
from clients.servers import until
from command_line import HUBSUB, environment, hubsub
from playwright.sync_api import Browser, WebSocketRoute, expect

from hubsub import BlockingClient
from hubsub.config import split_address

pytestmark = pytest.mark.needs("hubsub-core", "chromium")

LOST = re.compile("WebSocket connection to 'ws://127.0.0.1:")
"""The browser's own console error about a dead node."""


Gate = Callable[[WebSocketRoute], None]


class Demo:
    """A running `hubsub demo chat`; the tests use rooms without simulated people."""

    def __init__(self, temporary: Path, *args: object) -> None:
        self.temporary = temporary
        self.log = temporary / "stderr"
        command = [*HUBSUB, "demo", "chat", "--json", "--no-open", *map(str, args)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment(TMPDIR=str(temporary)), text=True
            )
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said, self.log.read_text()
        told = json.loads(said)
        self.page: str = told["page"]
        self.nodes: dict[str, dict[str, Any]] = {row["name"]: row for row in told["nodes"]}

    def leader(self, room: str, by: str) -> str:
        """The leader of a room, as a node sees it; creates the room, and waits until the node knows its
        leader."""
        url = f"http://{self.nodes[by]['http']}/v1/rooms/chat:{room}"

        def answer() -> str | None:
            with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as found:
                name: str | None = json.load(found)["nodes"][0]["name"]
            return name

        return until(answer)

    def cluster(self, *args: str) -> None:
        """Runs `hubsub cluster …`, as from another terminal."""
        run = hubsub("cluster", *args, TMPDIR=str(self.temporary))
        assert run.returncode == 0, run.stderr

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


class Person:
    """A person at a page of the demo."""

    def __init__(self, tab: Tab, demo: Demo, room: str, name: str, node: str, gate: Gate | None) -> None:
        self.tab = tab
        self.page = tab.page
        if gate is not None:
            self.page.route_web_socket(re.compile("^ws:"), gate)
        self.page.goto(f"{demo.page}/?{urlencode({'room': room, 'name': name, 'node': node})}")
        self.on(node)

    def on(self, node: str) -> None:
        """Waits until the page is connected to that node."""
        expect(self.page.locator("#state")).to_have_text(f"on {node}")

    def lost(self, node: str) -> None:
        """Waits until the page shows that it lost that node."""
        expect(self.page.locator("#state")).to_have_text(re.compile(f"lost {node}, trying n"))

    def on_another(self, node: str) -> None:
        """Waits until the page is connected to another node."""
        expect(self.page.locator("#state")).to_have_text(re.compile(f"on (?!{node})"))

    def say(self, *texts: str) -> None:
        box = self.page.get_by_label("Message", exact=True)
        for text in texts:
            box.fill(text)
            box.press("Enter")

    def sees(self, *texts: str) -> None:
        """Waits until the page shows exactly these messages, in this order, and none of its own is
        unconfirmed."""
        expect(self.page.locator("#said .text")).to_have_text(list(texts))
        expect(self.page.locator("#unheard li")).to_have_count(0)

    def is_with(self, *names: str) -> None:
        """Waits until the page lists exactly these members, sorted by name."""
        expect(self.page.locator("#here li")).to_have_text(list(names))

    def told(self, words: str) -> None:
        """Waits until the page shows one note about a gap that matches."""
        expect(self.page.locator(".note").filter(has_text=re.compile(words))).to_have_count(1)

    def check(self) -> None:
        """Checks that the only errors are lost nodes, and that the page sent requests only to its own
        server."""
        assert [trouble for trouble in self.tab.troubles if not LOST.match(trouble)] == []
        assert self.tab.asked == {urlsplit(self.tab.url).netloc}


class People(Protocol):
    """Opens a page in a room, on a node; `gate` decides about each WebSocket connection of the page."""

    def __call__(self, room: str, name: str, node: str, gate: Gate | None = None) -> Person: ...


@pytest.fixture(scope="module")
def browser(needs: Callable[..., None]) -> Iterator[Browser]:
    needs("chromium")
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def demo(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for all tests here, each in a room of its own; tests restart the nodes that they kill."""
    needs("hubsub-core")
    demo = Demo(tmp_path_factory.mktemp("demo"), "--pace", "20")
    try:
        yield demo
    except BaseException:
        print(demo.log.read_text())
        raise
    finally:
        demo.close()


@pytest.fixture
def people(browser: Browser, demo: Demo) -> Iterator[People]:
    """Opens pages. At the end no page may have had an unexpected error."""
    with ExitStack() as stack:
        made: list[Person] = []

        def one(room: str, name: str, node: str, gate: Gate | None = None) -> Person:
            made.append(Person(stack.enter_context(tab(browser, demo.page)), demo, room, name, node, gate))
            return made[-1]

        yield one
        for person in made:
            person.check()


def room_led_by(demo: Demo, node: str, prefix: str) -> str:
    """A room that this node leads."""
    return next(room for n in range(1_000) if demo.leader(room := f"{prefix}-{n}", "n1") == node)


def test_two_browsers_chat_through_the_death_of_a_node_and_miss_nothing(demo: Demo, people: People) -> None:
    room = room_led_by(demo, "n3", "through")
    ann, bob = people(room, "Ann", "n2"), people(room, "Bob", "n1")
    ann.say("one", "two")
    for person in (ann, bob):
        person.sees("one", "two")
        person.is_with("Ann", "Bob")
    bob.say("three")
    ann.sees("one", "two", "three")

    demo.cluster("kill", "n2")
    ann.say("four")  # Her page may or may not have noticed the death yet.
    ann.on_another("n2")
    ann.told("Lost n2, on n[13] now. (Nothing was|1 message was) said meanwhile")
    for person in (ann, bob):
        person.sees("one", "two", "three", "four")
        person.is_with("Ann", "Bob")
    bob.say("five")
    ann.sees("one", "two", "three", "four", "five")
    expect(bob.page.locator(".note")).to_have_count(0)
    name = ann.page.get_by_label("Name", exact=True)
    name.fill("Anna")
    name.blur()
    bob.is_with("Anna", "Bob")
    ann.page.close()
    bob.is_with("Bob")
    demo.cluster("start", "n2")


def test_what_was_said_while_a_page_was_away_comes_in_its_order_and_is_counted(
    demo: Demo, people: People
) -> None:
    room = room_led_by(demo, "n3", "away")
    bob = people(room, "Bob", "n2")
    bob.say("one")
    bob.sees("one")
    routes: list[WebSocketRoute] = []
    is_shut = False

    def gate(route: WebSocketRoute) -> None:
        routes.append(route)
        if is_shut:
            route.close()
        else:
            route.connect_to_server()

    ann = people(room, "Ann", "n1", gate)
    ann.sees("one")
    is_shut = True
    routes[0].close()
    ann.lost("n1")
    bob.say("two", "three")
    ann.say("four")
    bob.sees("one", "two", "three")
    is_shut = False
    ann.told("Lost n1, on n[123] now. 2 messages were said meanwhile, and all of them are here.")
    for person in (ann, bob):
        person.sees("one", "two", "three", "four")


def test_a_page_says_that_a_room_lost_its_memory_with_its_node_and_goes_on(
    demo: Demo, people: People
) -> None:
    room = room_led_by(demo, "n3", "memory")
    ann, bob = people(room, "Ann", "n3"), people(room, "Bob", "n1")
    ann.say("one")
    bob.sees("one")
    demo.cluster("kill", "n3")
    ann.on_another("n3")
    ann.told("Lost n3, on n[12] now. The room lost its memory")
    bob.told("The room's node died, and its memory with it")
    ann.say("two")
    bob.sees("one", "two")
    bob.say("three")
    ann.sees("one", "two", "three")
    demo.cluster("start", "n3")


def test_a_crowd_is_counted_and_on_a_phone_who_is_here_is_a_button_away(demo: Demo, people: People) -> None:
    routes: list[WebSocketRoute] = []

    def gate(route: WebSocketRoute) -> None:
        routes.append(route)
        route.connect_to_server()

    def told(count: int) -> None:
        """Sends the message of a node for a room with more members than it lists."""
        routes[-1].send(json.dumps([None, None, "chat:crowd", "presence_count", {"count": count}]))

    ann = people("crowd", "Ann", "n1", gate)
    ann.is_with("Ann")
    told(12_001)
    ann.is_with("Ann", "and 12000 more")
    bob = people("crowd", "Bob", "n2")
    ann.is_with("Ann", "Bob", "and 12000 more")
    told(2)
    ann.is_with("Ann", "Bob")

    phone = bob.page
    phone.set_viewport_size({"width": 390, "height": 844})
    here, crowd = phone.locator("#here"), phone.get_by_role("button", name="2 here")
    expect(here).to_be_hidden()
    crowd.press("Enter")
    expect(here).to_be_visible()
    expect(crowd).to_have_attribute("aria-expanded", "true")
    phone.keyboard.press("Escape")
    expect(here).to_be_hidden()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_people_say_is_text_whatever_it_is_and_whoever_said_it(demo: Demo, people: People) -> None:
    ann, bob = people("markup", "<b>Ann</b>", "n1"), people("markup", "Bob", "n2")
    markup = "<img src=x onerror=alert(1)>"
    ann.say(markup)
    bob.sees(markup)
    expect(bob.page.locator(".head bdi")).to_have_text("<b>Ann</b>")
    with BlockingClient(f"redis://{demo.nodes['n3']['redis']}") as client:
        for said in ("plain", '{"text":{"a":"<i>"},"name":7,"at":1e99}', "[1]", b"\xff"):
            client.publish("chat:markup", said)
    with Page(split_address(demo.nodes["n3"]["ws"])) as page:
        page.join("chat:markup")
        # Property names of every JavaScript object must not count as kinds, and null has no text.
        page.push("chat:markup", "message", {"kind": "constructor", "text": "built"})
        page.push("chat:markup", "message", [])
        page.push("chat:markup", "publish", ["message", None])
    shown = [markup, "plain", '{"a":"<i>"}', "[1]", '{"base64":"/w=="}', "built", "[]", "{}"]
    bob.sees(*shown)
    bob.say("after all that")
    ann.sees(*shown, "after all that")


def test_people_talk_by_themselves_and_come_and_go(demo: Demo, people: People) -> None:
    ann = people("lobby", "Ann", "n1")
    for row in (".said:not(.mine)", ".about"):
        expect(ann.page.locator(row).first).to_be_visible()
    ann.say("so many people here")
    expect(ann.page.locator(".mine .text").filter(has_text="so many people here")).to_have_count(1)


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--pace", "0", "--for", "1ms")
    try:
        assert demo.process.wait(60) == 0
    finally:
        demo.close()
    assert list(tmp_path.glob("hubsub-cluster-*")) == []
