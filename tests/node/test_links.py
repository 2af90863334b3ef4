"""Two and three nodes keep their links despite failures."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.linked import WAIT_S, Linked

StartLinked = Callable[..., Linked]


@pytest.fixture
def start_linked(needs: Callable[..., None], tmp_path: Path) -> Iterator[StartLinked]:
    """Starts node processes; all end with the test."""
    needs("hubsub-core")
    with contextlib.ExitStack() as stack:
        yield lambda name, **kwargs: stack.enter_context(Linked(name, tmp_path, **kwargs))


def meet(*nodes: Linked) -> None:
    """Registers all nodes with each other and waits until all are up."""
    for node in nodes:
        node.roster(*nodes)
    for node in nodes:
        left = {other.name for other in nodes if other is not node}
        while left:
            left.discard(node.event("up")["node"])


def states(node: Linked, peer: str) -> list[str]:
    return [link["state"] for link in node.peers()[peer]["links"]]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_three_nodes_link_up_whoever_starts_and_is_registered_first(
    start_linked: StartLinked, order: tuple[str, ...]
) -> None:
    shards = {"a": 1, "b": 2, "c": 3}
    nodes: dict[str, Linked] = {}
    for name in order:
        nodes[name] = start_linked(name, shards=shards[name])
        for node in nodes.values():
            node.roster(*nodes.values())
    for node in nodes.values():
        left = {other for other in order if other != node.name}
        while left:
            left.discard(node.event("up")["node"])
    for one, other in itertools.permutations("abc", 2):
        links = nodes[one].peers()[other]["links"]
        assert [link["state"] for link in links] == ["up"] * min(shards[one], shards[other])
        assert all(link["code"] is None for link in links)
        # Only patterns are sent, and only on link 0.
        assert all(link["sent"]["live"] == 0 for link in links[1:]) and links[0]["sent"]["live"] <= 3


@pytest.mark.parametrize("late", ["a", "b"])
def test_who_hears_of_its_peers_before_it_registers_links_up_then(
    start_linked: StartLinked, late: str
) -> None:
    nodes = {name: start_linked(name, begins=name != late) for name in "ab"}
    for node in nodes.values():
        node.roster(*nodes.values())
    assert states(nodes[late], "ab".replace(late, "")) == ["waiting", "waiting"]
    nodes[late].tell("begin", 1)
    for node in nodes.values():
        node.event("up")


def test_who_registers_anew_is_another_process_to_its_peers(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b")
    meet(a, b)
    a.incarnation = 5
    b.roster(a, b)
    assert b.event("down", "a")["code"] == "unregistered"
    a.tell("begin", 5)
    assert b.event("up", "a")["incarnation"] == 5
    a.event("down", "b")
    a.event("up", "b")
    assert a.ask("ask", "b", "anew") == "wena"


def test_a_peer_tells_its_status_its_clock_and_that_it_lives(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b")
    b.tell("status", 9)
    meet(a, b)

    def knows() -> bool:
        links = a.peers()["b"]["links"]
        return all(
            link["controller_term"] == 0 and link["classes"] == 9 and link["offset_us"] is not None
            for link in links
        )

    while not knows():
        assert a.process.poll() is None
    for link in a.peers()["b"]["links"]:
        assert abs(link["offset_us"]) <= link["offset_error_us"] + 1_000, "one machine has one clock"
        assert 0 <= link["heard_ms"] < WAIT_S * 1_000
        assert link["bytes_in"] > 0 and link["bytes_out"] > 0 and link["frames_in"] > 0


def test_control_planes_ask_each_other_in_both_directions(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b", shards=1)
    assert a.ask("ask", "b", "too early") == "not_linked"
    meet(a, b)
    assert (a.ask("ask", "b", "hello"), b.ask("ask", "a", "there")) == ("olleh", "ereht")
    long = "x" * 3_000_000
    assert a.ask("ask", "b", long + "y") == "y" + long
    assert a.ask("ask", "c", "who?") == "not_linked"


def test_what_is_asked_over_a_link_that_ends_has_an_unknown_outcome(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b")
    meet(a, b)
    a.tell("ask", "b", "never")
    assert b.ask("ask", "a", "in order") == "redro ni"
    b.kill()
    assert a.wait(lambda said: said["say"] == "ask")["answer"] == "link_lost"


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_killed_node_is_told_as_dead_and_a_new_process_links_again(
    start_linked: StartLinked, victim: str
) -> None:
    """Runs for the node that is dialed and for the node that dials."""
    nodes = {name: start_linked(name) for name in "abc"}
    meet(*nodes.values())
    nodes[victim].kill()
    others = [node for name, node in nodes.items() if name != victim]
    for node in others:
        assert node.event("down", victim)["code"] == "eof"
        dead = node.event("dead", victim)
        assert dead["incarnation"] == 1
    again = start_linked(victim, incarnation=2)
    for node in (again, *others):
        node.roster(again, *others)
    for node in others:
        assert node.event("up", victim)["incarnation"] == 2
        assert not [said for said in node.seen if said.get("code") == "broken_rule"]


def test_a_node_that_stops_says_goodbye_and_is_not_dead(start_linked: StartLinked) -> None:
    a, b, c = (start_linked(name) for name in "abc")
    meet(a, b, c)
    assert b.stop() == 0
    assert a.event("down", "b")["code"] == c.event("down", "b")["code"] == "stopping"
    # Replies keep their order: nothing else was reported before this one.
    assert states(a, "c") == states(c, "a") == ["up", "up"]
    assert not [said for node in (a, c) for said in node.seen if said.get("kind") == "dead"]


def test_a_halted_peer_is_suspected_and_heard_again(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b")
    meet(a, b)
    b.signal(signal.SIGSTOP)
    try:
        a.event("suspected", "b")
        assert "suspected" in states(a, "b")
    finally:
        b.signal(signal.SIGCONT)
    a.event("heard", "b")
    assert states(a, "b") == ["up", "up"]
    assert sum(link["suspicions"] for link in a.peers()["b"]["links"]) >= 1
    assert a.ask("ask", "b", "back") == "kcab"


def test_a_peer_that_is_silent_for_long_is_down_and_comes_back(start_linked: StartLinked) -> None:
    limits = {"link_heartbeat_ms": 20, "link_suspect_ms": 100, "link_silence_ms": 300}
    a, b = start_linked("a", limits=limits), start_linked("b", limits=limits)
    meet(a, b)
    b.signal(signal.SIGSTOP)
    try:
        assert a.event("down", "b")["code"] == "silent"
    finally:
        b.signal(signal.SIGCONT)
    a.event("up", "b")
    b.event("up", "a")
    assert not [said for said in a.seen if said.get("kind") == "dead"], (
        "its port took connections all the time"
    )


def test_who_is_registered_no_more_loses_its_links_and_the_same_again_changes_nothing(
    start_linked: StartLinked,
) -> None:
    a, b, c = (start_linked(name) for name in "abc")
    meet(a, b, c)
    a.roster(a, b, c)
    a.roster(c, a)
    assert a.event("down")["code"] == "unregistered"
    assert b.event("down", "a")["code"] == "goodbye"
    assert list(a.peers()) == ["c"] and states(a, "c") == ["up", "up"]
    a.roster(a, b, c)
    a.event("up", "b")
    b.event("up", "a")


def test_a_peer_with_several_addresses_is_found_behind_those_where_it_is_not(
    start_linked: StartLinked,
) -> None:
    a, b, other = start_linked("a"), start_linked("b"), start_linked("x")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
        a.roster(("b", 1, [nowhere, other.link, b.link], 2))
        b.roster(a)
        a.event("up", "b")


def test_dialing_a_closed_port_leaks_nothing(start_linked: StartLinked) -> None:
    a = start_linked("a", limits={"link_redial_ms_max": 10})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # Bound and not listening: no other process gets the port.
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
        b = ("b", 1, [nowhere], 2)
        a.roster(b)
        # Both shards have started and opened their permanent descriptors.
        while not all(link["code"] == "unreachable" for link in a.peers()["b"]["links"]):
            assert a.process.poll() is None
        a.roster()
        before, dialed = a.ask("fds"), a.ask("metrics")["links_dialed_total"]
        a.roster(b)
        while a.ask("metrics")["links_dialed_total"] < dialed + 50:
            assert a.process.poll() is None
        link = a.peers()["b"]["links"][0]
        assert link["state"] in ("waiting", "dialing")
        assert link["code"] == "unreachable" and nowhere in link["text"]
        a.roster()
        end = time.monotonic() + 30
        while a.ask("fds") > before:  # Attempts in flight end as their shards receive the change.
            assert time.monotonic() < end
        assert not [said for said in a.seen if said.get("kind") == "dead"], "it was never up"


def test_a_node_keeps_its_clients_while_a_peer_comes_and_goes(start_linked: StartLinked) -> None:
    import redis

    a, b = start_linked("a"), start_linked("b")
    host, port = a.redis.split(":")
    with redis.Redis(host=host, port=int(port)) as client:
        known = client.client_id()
        meet(a, b)
        b.kill()
        a.event("dead", "b")
        assert client.client_id() == known, "over the same connection"
