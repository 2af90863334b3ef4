"""Nodes acquire leader leases over their links, renew them, give them up, and lose them at the deadline."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.link_wire import WELCOME, Dialer, frame
from node.linked import Linked
from node.test_links import meet

StartLinked = Callable[..., Linked]

LEAD_S = 1.0
LONG_S = 3_600.0
"""Seconds of a controller term that does not end during the test."""
CLOCK_S = 0.001
"""Tolerance in seconds between two clock readings: the core's and Python's clocks are read one after the
other."""
HUB, TERM = 7, 3
PAIR = [HUB, TERM]


@pytest.fixture
def start_linked(needs: Callable[..., None], tmp_path: Path) -> Iterator[StartLinked]:
    """Starts node processes; all end with the test."""
    needs("hubsub-core")
    with contextlib.ExitStack() as stack:
        yield lambda name, **kwargs: stack.enter_context(Linked(name, tmp_path, **kwargs))


def until(node: Linked, is_it: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The node's lease state, once it fulfils the condition."""
    while True:
        shown: dict[str, Any] = node.ask("leads")
        if is_it(shown):
            return shown
        assert node.process.poll() is None


def counted(*nodes: Linked) -> None:
    """Connects the nodes; a majority of them confirms a controller term."""
    meet(*nodes)
    for node in nodes:
        node.tell("voters", 1, sorted(node.name for node in nodes))


def grant(
    controller: Linked, *tables: tuple[Linked, list[list[int]]], controller_term: int = 1
) -> dict[str, Any]:
    rows = [[node.name, node.incarnation, pairs] for node, pairs in tables]
    shown: dict[str, Any] = controller.ask("tables", controller_term, LONG_S, rows, 1)
    return shown


@pytest.fixture
def three(start_linked: StartLinked) -> tuple[Linked, Linked, Linked]:
    """Of three nodes, a leads a hub and c is the controller."""
    nodes = a, b, c = start_linked("a"), start_linked("b"), start_linked("c")
    counted(*nodes)
    a.tell("routes", [[HUB, TERM, False]])
    grant(c, (a, [PAIR]), (b, []), (c, []))
    a.lead("opened")
    return nodes


def test_what_a_table_has_is_led_and_the_lead_is_renewed(start_linked: StartLinked) -> None:
    a, c = start_linked("a"), start_linked("c")
    counted(a, c)
    a.tell("routes", [[HUB, TERM, False]])
    shown = grant(c, (a, [PAIR]))
    assert (shown["controller_term"], shown["voters"]) == (1, 1)
    assert a.lead("acknowledges")["controller_term"] == 1
    began = a.lead("began", hub=HUB, term=TERM)
    a.lead("opened")
    first = until(a, lambda shown: shown["until_s"] is not None)["until_s"]
    assert first <= began["at_s"] + LEAD_S, "counted from before it asked"
    held = until(a, lambda shown: shown["until_s"] > first + 2 * LEAD_S)["until_s"]
    # The displayed deadline lags slightly.
    known = until(c, lambda shown: shown["peers"]["a"]["lease_until_s"] >= held)["peers"]["a"]
    assert (
        known["acknowledged_s"] < known["acknowledged_until_s"] <= known["heard_s"] and known["gave_up"] == []
    )
    assert not [said for said in a.seen if said.get("kind") in ("closed", "gave_up")]


def test_no_lead_is_granted_without_a_table_and_none_of_another_incarnation(
    start_linked: StartLinked,
) -> None:
    a, c = start_linked("a", incarnation=2), start_linked("c")
    counted(a, c)
    a.tell("routes", [[HUB, TERM, False]])
    c.ask("tables", 1, LONG_S, [["a", 1, [PAIR]]], 1)
    until(c, lambda shown: shown["peers"].get("a", {}).get("acknowledged_s"))
    assert until(a, lambda shown: shown["acknowledged_term"] == 1)["until_s"] is None
    # The node asks repeatedly and is granted what this incarnation's table contains: another hub.
    grant(c, (a, [[HUB + 1, TERM]]))
    a.lead("opened")
    grant(c, (a, [PAIR]))
    a.lead("began", hub=HUB, term=TERM)
    assert not [said for said in a.seen if said.get("hub") not in (None, HUB)]


def test_what_a_table_has_no_more_is_given_up_and_the_controller_hears_of_it(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, b, c = three
    grant(c, (a, []), (b, []), (c, []))
    a.lead("gave_up", hub=HUB, term=TERM)
    c.wait(lambda said: said["say"] == "lead" and said["kind"] == "changed")
    until(c, lambda shown: shown["peers"]["a"]["gave_up"] == [PAIR])
    # Giving up is final for a term: a table that lists it again changes nothing, but the next term does.
    grant(c, (a, [PAIR, [HUB, TERM + 1]]), (b, []), (c, []))
    a.tell("routes", [[HUB, TERM + 1, False]])
    a.lead("began", hub=HUB)
    assert [said["term"] for said in a.seen if said.get("kind") == "began"] == [TERM, TERM + 1]
    until(c, lambda shown: shown["peers"]["a"]["gave_up"] == [])


def test_a_hub_that_its_record_gives_to_another_is_given_up_while_the_lead_goes_on(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, _, c = three
    a.tell("routes", [[HUB, TERM, True]])
    a.lead("gave_up", hub=HUB, term=TERM)
    until(c, lambda shown: shown["peers"]["a"]["gave_up"] == [PAIR])
    held = a.ask("leads")["until_s"]
    until(a, lambda shown: shown["until_s"] > held)


def test_a_leader_that_is_cut_off_leads_until_its_deadline_and_no_longer(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, _, c = three
    heeding = until(c, lambda shown: all(shown["peers"].get(name, {}).get("acknowledged_s") for name in "ab"))
    # Until then it may lead by leases from nodes that had not yet acknowledged the controller; the controller
    # waits for that, too.
    settled = max(peer["acknowledged_s"] for peer in heeding["peers"].values()) + LEAD_S
    held = until(a, lambda shown: shown["until_s"] > settled)["until_s"]
    a.roster()
    cut = a.lead("acknowledges", controller_term=0)
    closed = a.lead("closed")
    ended = a.ask("leads")["until_s"]
    assert held - CLOCK_S <= ended <= cut["at_s"] + LEAD_S, "asked for before it was cut off"
    assert ended <= closed["at_s"] + CLOCK_S, "not before"
    # The controller waits at least as long; its displayed value lags slightly.
    until(c, lambda shown: ended <= shown["peers"]["a"]["lease_until_s"] + CLOCK_S)
    a.roster(*three)
    a.lead("opened")
    assert not [said for said in a.seen if said.get("kind") == "gave_up"], "it is still its own"


def test_a_controller_term_that_ends_grants_nothing_more_and_a_majority_goes_on_without_a_controller(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, b, c = three
    assert c.ask("resign", 1)["controller_term"] == 0
    a.lead("acknowledges", controller_term=0)
    gone_s = time.monotonic()
    until(a, lambda shown: shown["until_s"] > gone_s + 3 * LEAD_S)
    assert not [said for said in a.seen if said.get("kind") == "closed"]
    # Without a majority the controller term ends.
    b.kill()
    c.kill()
    closed = a.lead("closed")
    assert a.ask("leads")["until_s"] <= closed["at_s"] + CLOCK_S


def test_a_controller_that_is_silent_is_not_heeded_and_the_lead_goes_on_among_the_others(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, _, c = three
    c.signal(signal.SIGSTOP)
    try:
        a.lead("acknowledges", controller_term=0)
        silent_s = time.monotonic()
        until(a, lambda shown: shown["until_s"] > silent_s + 2 * LEAD_S)
    finally:
        c.signal(signal.SIGCONT)
    a.lead("acknowledges", controller_term=1)
    assert not [said for said in a.seen if said.get("kind") == "gave_up"]


def test_a_leader_that_was_halted_finds_its_lead_ended_before_it_has_another(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, _, c = three
    a.signal(signal.SIGSTOP)
    try:
        c.event("suspected", "a")
        until(c, lambda shown: shown["peers"]["a"]["lease_until_s"] < shown["now_s"])
    finally:
        a.signal(signal.SIGCONT)
    a.lead("closed")
    a.lead("opened")
    assert not [said for said in a.seen if said.get("kind") == "gave_up"]


def test_leads_are_spoken_of_on_link_0_alone(start_linked: StartLinked) -> None:
    b = start_linked("b")
    b.roster(("a", 1, ["127.0.0.1:1"], 2))
    with contextlib.closing(Dialer(b.link)) as dialer:
        dialer.prove(dialer.hello(shards=2, link=1))
        welcome = dialer.frame()
        assert welcome is not None and welcome.code == WELCOME
        # A lease request, stamped 0, that claims no hub.
        dialer.send(frame(48, bytes(8) + bytes(3)))
        assert "LeadAsk" in dialer.goodbye()


def test_another_incarnation_begins_without_leads(three: tuple[Linked, Linked, Linked]) -> None:
    a, b, c = three
    a.incarnation = 2
    for node in (b, c):
        node.roster(a, b, c)
    a.tell("begin", 2)
    shown = until(c, lambda shown: ["a", 2] in shown["processes"] and shown["peers"]["a"]["acknowledged_s"])
    assert ["a", 1] not in shown["processes"]
    assert until(a, lambda shown: shown["acknowledged_term"] == 1)["until_s"] is None
    grant(c, (a, [PAIR]), (b, []), (c, []))
    a.lead("opened")
    assert len([said for said in a.seen if said.get("kind") == "began"]) == 1, "it claims nothing any more"


def test_another_incarnation_does_not_say_whom_the_one_before_heeded(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, b, _ = three
    a.incarnation = 2
    b.roster(a, b)
    # The controller does not learn of the new incarnation, so it does not admit it.
    a.tell("begin", 2)
    assert b.event("up", "a")["incarnation"] == 2

    def link() -> dict[str, Any]:
        found: dict[str, Any] = b.peers()["a"]["links"][0]
        return found

    while link()["offset_us"] is None:
        assert a.process.poll() is None
    assert link()["acknowledged_term"] == 0


def test_a_dead_leader_is_told_at_once_and_known_until_another_has_its_name(
    three: tuple[Linked, Linked, Linked], start_linked: StartLinked
) -> None:
    a, b, c = three
    until(c, lambda shown: shown["peers"]["a"]["lease_until_s"] is not None)
    a.kill()
    c.event("dead", "a")
    c.roster(b, c)
    kept = grant(c, (b, []), (c, []))
    assert ["a", 1] in kept["processes"], "it was granted a lead under this controller term"
    assert kept["peers"]["a"]["lease_until_s"] is not None
    again = start_linked("a", incarnation=2)
    for node in (again, b, c):
        node.roster(again, b, c)
    until(c, lambda shown: ["a", 2] in shown["processes"] and ["a", 1] not in shown["processes"])


def test_who_is_registered_no_more_and_holds_no_lead_is_forgotten(start_linked: StartLinked) -> None:
    a, b = start_linked("a"), start_linked("b")
    meet(a, b)
    until(a, lambda shown: ["b", 1] in shown["processes"])
    a.roster(a)
    until(a, lambda shown: shown["processes"] == [["a", 1]])


def test_a_later_controller_term_takes_over_and_tables_of_an_earlier_one_change_nothing(
    three: tuple[Linked, Linked, Linked],
) -> None:
    a, b, c = three
    held = a.ask("leads")["until_s"]
    grant(b, (a, [PAIR]), (b, []), (c, []), controller_term=2)
    a.lead("acknowledges", controller_term=2)
    until(a, lambda shown: shown["until_s"] > held + LEAD_S)
    assert b.ask("tables", 1, LONG_S, [], 1)["controller_term"] == 2
    until(b, lambda shown: shown["peers"]["a"]["acknowledged_s"] is not None)
    until(c, lambda shown: shown["acknowledged_term"] == 2)
    assert not [said for said in a.seen if said.get("kind") in ("closed", "gave_up")]


def test_a_node_alone_is_its_own_controller_and_each_of_its_shards_confirms(
    start_linked: StartLinked,
) -> None:
    a = start_linked("a", shards=4)
    a.tell("voters", 1, ["a"])
    hubs = list(range(1, 9))
    a.tell("routes", [[hub, 1, False] for hub in hubs])
    a.tell("tables", 1, LONG_S, [["a", 1, [[hub, 1] for hub in hubs]]], 1)
    left = set(hubs)
    while left:
        left.discard(a.lead("began")["hub"])
    a.lead("opened")
    a.tell("tables", 1, LONG_S, [["a", 1, [[hub, 1] for hub in hubs if hub > 5]]], 1)
    left = {1, 2, 3, 4, 5}
    while left:
        left.remove(a.lead("gave_up")["hub"])
    held = until(a, lambda shown: len(shown["peers"]["a"]["gave_up"]) == 5)["until_s"]
    until(a, lambda shown: shown["until_s"] > held)
