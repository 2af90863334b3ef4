"""The console of one of three nodes in a real browser: it shows all nodes and their changes, and its layout
does not shift."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product

import pytest
from browser import chromium, tab
from clients.raw import Connection
from playwright.sync_api import Browser, expect

from cluster.cluster import Cluster

pytestmark = pytest.mark.needs("hubsub-core", "chromium")


@pytest.fixture(scope="module")
def browser(needs: Callable[..., None]) -> Iterator[Browser]:
    needs("chromium")
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def cluster(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here, which restore its state."""
    needs("hubsub-core")
    with Cluster(tmp_path_factory.mktemp("console")) as cluster:
        yield cluster


def test_it_shows_all_nodes_and_one_that_is_killed_as_gone_until_it_is_back(
    cluster: Cluster, browser: Browser
) -> None:
    with tab(browser, cluster.nodes["a"].http_url) as console:
        page = console.open()
        for name in "abc":
            expect(console.row("Nodes", name).get_by_role("cell").first).to_have_text("up")
        hubs = sum(not row["class"].startswith("$") for row in cluster.status("a")["hubs"])
        expect(page.locator(".hub")).to_have_count(hubs)
        expect(page.get_by_role("heading", name="All is well")).to_be_visible()

        cluster.kill("c")
        state = console.row("Nodes", "c").get_by_role("cell").first
        expect(state).to_have_text(re.compile(r"\w+, heard last at \d\d:\d\d:\d\d"))
        expect(page.get_by_role("heading", name="What is wrong")).to_be_visible()
        expect(page.locator(".wrong li").filter(has_text=re.compile("^node c: "))).to_have_count(1)
        moves = page.get_by_role("table", name="Failovers and moves")
        why = re.compile("its leader (is dead|was not heard)")
        expect(moves.get_by_role("cell", name=why).first).to_be_visible()
        expect(console.row("Nodes", "b").get_by_role("cell").first).to_have_text("up")

        cluster.start("c")
        expect(state).to_have_text("up")
        console.check()
    cluster.settled()
    notes = cluster.get("a", "/v1/moves")[1]["moves"]
    whys = {note["why"]: note["words"] for note in notes}
    assert "started again" in whys and whys["gave up"] == "handed over by its leader"
    assert not whys.keys() & {"propose", "withdraw", "has records"}, "steps on the way are no moves"


def test_a_hub_says_its_leader_and_term_to_the_pointer_and_to_keys(
    cluster: Cluster, browser: Browser
) -> None:
    with tab(browser, cluster.nodes["b"].http_url) as console:
        page = console.open()
        group = page.get_by_role("group", name="Hubs of class chat")
        told = page.locator(".told")
        first = group.get_by_role("button").first
        first.hover()
        leader = cluster.leaders("b")[0]
        expect(told).to_contain_text(re.compile(rf"chat-0 .*leader {leader}, term \d+"))
        first.focus()
        page.keyboard.press("ArrowRight")
        expect(told).to_contain_text("chat-1 ")
        page.keyboard.press("End")
        expect(told).to_contain_text(f"chat-{group.get_by_role('button').count() - 1} ")
        console.check()


def test_a_room_of_another_node_is_shown_with_its_leader_and_what_comes(
    cluster: Cluster, browser: Browser
) -> None:
    room = cluster.room_led_by("c")
    with tab(browser, cluster.nodes["a"].http_url) as console, cluster.connect("b") as client:
        page = console.open(f"room/{room.replace(':', '%3A')}")
        assert isinstance(client, Connection)
        client.ask("PUBLISH", room, "from afar")
        expect(page.get_by_role("cell", name="from afar")).to_be_visible()
        leader = page.locator("dl > div").filter(has_text=re.compile("^leader"))
        expect(leader.locator("dd")).to_have_text("c")
        console.check()


WATCHED = """
  let looks = 0;
  let waiting = [];
  globalThis.looked = (many) => new Promise((done) => (many <= looks ? done() : waiting.push({ many, done })));
  const add = EventSource.prototype.addEventListener;
  EventSource.prototype.addEventListener = function (name, heard) {
    add.call(this, name, (event) => {
      heard(event);
      if (name !== "nodes") return;
      looks += 1;
      for (const { many, done } of waiting) if (many <= looks) done();
      waiting = waiting.filter(({ many }) => many > looks);
    });
  };
  globalThis.shifts = [];
  const told = ({ tagName, className }) => `${tagName}.${className}`;
  new PerformanceObserver((list) => {
    for (const { value, sources } of list.getEntries()) {
      const moved = sources.map(({ node }) => (node?.nodeType === Node.TEXT_NODE ? node.parentElement : node));
      // The latest record comes first, and the busiest room: rows change places for that, and nothing else does.
      if (moved.every((node) => node?.closest(".tail tbody, .ranked tbody"))) continue;
      globalThis.shifts.push({ value, moved: moved.map((node) => node && told(node)) });
    }
  }).observe({ type: "layout-shift", buffered: true });
"""
"""Counts the polls that a page has shown, and records layout shifts without user input."""

LOOKS = 8
"""Polls that each page shows; between two of them come 3, 9, … 729 records, and 1."""
SHIFT = 0.005
"""Maximum layout shift per poll: the share of the window that moved times the distance; 0.1 for a whole visit
counts as good."""


def test_nothing_jumps_while_figures_change(cluster: Cluster, browser: Browser) -> None:
    places = ("", "rooms", "room/chat%3Asteady", "clients", "devices", "spark")
    with ExitStack() as stack:
        client = stack.enter_context(cluster.connect("b"))
        assert isinstance(client, Connection)

        def publish(count: int) -> None:
            for n in range(count):
                client.ask("PUBLISH", f"chat:{'steady' if n % 2 else n % 16}", "x" * n)

        publish(32)
        pages = {}
        for width, place in product((1280, 390), places):
            viewport = {"width": width, "height": 900}
            one = stack.enter_context(tab(browser, cluster.nodes["a"].http_url, viewport=viewport))
            one.page.add_init_script(WATCHED)
            pages[width, place] = one.open(place)
        for look in range(1, LOOKS + 1):
            for page in pages.values():
                page.evaluate("looked", look)
                if look == 2:  # Everything has loaded: from now on it only changes.
                    page.evaluate("globalThis.shifts.length = 0")
            publish(3 ** (look % (LOOKS - 1)))
        found = {place: page.evaluate("shifts") for place, page in pages.items()}
    assert {place: of for place, of in found.items() if any(one["value"] > SHIFT for one in of)} == {}
