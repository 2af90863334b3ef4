"""The console of one of three nodes in a real browser: it shows all of them, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
    """One for all tests here, which leave it as it was."""
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
