"""Each rule of hub leadership by itself. See `test_simulation` for all of them together."""

from dataclasses import replace

import pytest

from hubsub.control.cluster import voters
from hubsub.control.cluster.commits import CONTROLLER
from hubsub.control.cluster.failover import Decision, Step, acting, decide
from hubsub.control.cluster.hub_ring import Place, assign
from hubsub.control.cluster.records import VOTERS, ClassRecord, HubRecord, Proposed, VotersRecord, parse
from hubsub.control.cluster.view import Peer, Stored, View
from unit.cluster.fixtures import CONTROLLER_REVISION, NOW, TIMING, hub, node, peer, view

LONG_AGO = NOW - 50
CUT_OFF = peer(heard_s=LONG_AGO, lease_until_s=LONG_AGO)
HUBS = [f"chat/{index}" for index in range(9)]
HOME = {HUBS.index(name): members[0] for name, members in assign([Place(n) for n in "abc"], HUBS).items()}


def at_home() -> dict[int, Stored[HubRecord]]:
    """Nine hubs, each at the ring's node."""
    return {index: hub(HOME[index], index) for index in range(9)}


def decided(seen: View, now: float = NOW, **options: int) -> Decision:
    return decide(replace(seen, now=now), **options)


def whys(decision: Decision) -> set[tuple[int, str]]:
    return {(step.hub, step.why) for step in decision.steps}


def led_by(name: str) -> set[int]:
    return {index for index, leader in HOME.items() if leader == name}


def test_a_cluster_that_is_well_is_left_alone() -> None:
    decision = decided(view(hubs=at_home()))
    assert (decision.commits, decision.steps) == ((), ())
    assert decision.tables == {(name, 1): {(index, 3) for index in led_by(name)} for name in "abc"}


def test_a_new_class_gets_its_hubs_spread_over_the_nodes_in_their_first_term() -> None:
    seen = view(classes={"chat": ClassRecord(version=1, hubs=9)})
    decision = decided(seen)
    assert {step.after.index: step.after.leader for step in decision.steps} == HOME
    assert {step.after.term for step in decision.steps} == {1}
    (commit,) = decision.commits
    assert commit.expect == {CONTROLLER: CONTROLLER_REVISION} | {f"hubs/{i}": 0 for i in range(1, 10)}


def test_hubs_of_a_class_with_a_log_go_to_nodes_that_keep_one_and_wait_where_there_is_none() -> None:
    classes = {"log": ClassRecord(version=1, hubs=9, durability="durable")}
    nodes = dict(node(name, keeps_log=name == "b") for name in "abc")
    decision = decided(replace(view(classes=classes), nodes=nodes))
    assert {step.after.leader for step in decision.steps} == {"b"} and len(decision.steps) == 9
    nodes = dict(node(name, keeps_log=False) for name in "abc")
    both = classes | {"chat": ClassRecord(version=1, hubs=9)}
    decision = decided(replace(view(classes=both), nodes=nodes))
    assert {step.after.room_class for step in decision.steps} == {"chat"}
    assert {step.hub for step in decision.steps} == set(range(1, 10))


def test_hubs_of_another_class_get_numbers_that_are_free() -> None:
    classes = {"chat": ClassRecord(version=1, hubs=9), "game": ClassRecord(version=1, hubs=2)}
    assert {step.hub for step in decided(view(hubs=at_home(), classes=classes)).steps} == {9, 10}


def test_a_dead_leader_is_replaced_at_once_in_the_next_term_by_one_commit() -> None:
    seen = view(hubs=at_home(), peers={("b", 1): replace(peer(), dead_s=NOW)})
    decision = decided(seen)
    assert whys(decision) == {(index, "dead") for index in led_by("b")}
    (commit,) = decision.commits
    assert commit.expect[CONTROLLER] == CONTROLLER_REVISION
    for write in commit.writes:
        record = parse(HubRecord, write.key, write.value)
        assert record.term == 4 and record.leader in "ac" and record.incarnation == 1
        assert commit.expect[write.key] == seen.hubs[record.index].revision


def test_a_process_that_registers_again_proves_the_one_before_it_dead() -> None:
    seen = view(hubs=at_home(), peers={("b", 1): CUT_OFF, ("b", 2): peer()}, elected_s=NOW)
    seen = replace(seen, nodes={**seen.nodes, **dict([node("b", 2)])})
    decision = decided(seen)
    assert whys(decision) == {(index, "dead") for index in led_by("b")}
    assert {(step.after.leader, step.after.incarnation) for step in decision.steps} == {("b", 2)}


def test_a_silent_leader_keeps_its_hubs_until_its_lead_and_the_guard_are_over() -> None:
    until = NOW - 0.01
    silent = peer(heard_s=NOW - 1, lease_until_s=until)
    seen = view(hubs=at_home(), peers={("b", 1): silent})
    early = decided(seen, until + TIMING.guard_s - 0.001)
    assert not early.steps and early.tables["b", 1]
    end = until + TIMING.guard_s + 0.001
    first = decided(seen, end)
    # Its table is emptied first: from then on it cannot be granted hubs that others get.
    assert not first.steps and not first.tables["b", 1]
    seen = replace(seen, tables=first.tables)
    # Others were heard recently, but may have extended its leader lease since their last known
    # acknowledgement of this controller.
    assert not decided(seen, end).steps
    known = {("a", 1): peer(acknowledged_until_s=end), ("c", 1): peer(acknowledged_until_s=end)}
    then = decided(replace(seen, peers={**seen.peers, **known}), end)
    assert whys(then) == {(index, "lead ended") for index in led_by("b")}


def test_a_new_controller_waits_out_a_lead_from_when_a_majority_heeds_it() -> None:
    peers = {
        ("a", 1): peer(acknowledged_s=NOW),
        ("c", 1): peer(acknowledged_s=NOW + 5),
        ("b", 1): replace(CUT_OFF, lease_until_s=None),
    }
    seen = view(hubs=at_home(), peers=peers, elected_s=NOW, tables={})

    def heard(now: float) -> View:
        fresh = {
            id_: replace(p, heard_s=now, acknowledged_until_s=now, lease_until_s=now + 1)
            for id_, p in peers.items()
            if id_[0] != "b"
        }
        return replace(seen, peers=peers | fresh)

    for now in (NOW + TIMING.wait_s + 1, NOW + 5 + TIMING.wait_s - 0.01):
        assert not decided(heard(now), now).steps
    now = NOW + 5 + TIMING.wait_s + 0.01
    assert whys(decided(heard(now), now)) == {(index, "lead ended") for index in led_by("b")}


def test_who_is_heard_and_may_be_granted_from_now_on_is_not_replaced() -> None:
    """A new controller has no tables before its first decision, which may come late."""
    seen = view(hubs=at_home(), peers={("b", 1): peer(lease_until_s=None)}, tables={})
    seen = replace(seen, elected_s=NOW - TIMING.wait_s - 0.01)
    decision = decided(seen)
    assert not decision.steps and decision.tables["b", 1] == {(index, 3) for index in led_by("b")}


@pytest.mark.parametrize("state", [CUT_OFF, replace(peer(), dead_s=NOW)])
def test_without_a_majority_nothing_is_written_and_what_is_granted_goes_on(state: object) -> None:
    seen = view("abcd", hubs=at_home(), peers={("b", 1): state, ("d", 1): state})  # type: ignore[dict-item]
    decision = decided(seen)
    assert decision.commits == ()
    assert decision.tables["c", 1] == {(index, 3) for index in led_by("c")}


def test_nodes_that_lapsed_count_until_a_majority_of_all_agrees() -> None:
    seen = view("ab", hubs=at_home(), voters=Stored(VotersRecord(nodes=tuple("abcde")), 6))
    assert decided(seen).commits == ()


def test_what_a_leader_gave_up_is_led_by_the_one_that_was_proposed() -> None:
    hubs = at_home()
    mine = min(led_by("b"))
    hubs[mine] = hub("b", mine, proposed=Proposed(leader="c", members=("c",)))
    assert not decided(view(hubs=hubs)).steps
    (step,) = decided(view(hubs=hubs, peers={("b", 1): peer(gave_up=frozenset({(mine, 3)}))})).steps
    assert (step.why, step.after.leader, step.after.term, step.after.proposed) == ("gave up", "c", 4, None)
    assert step.ended_term == (mine, 3)


def test_what_was_given_up_in_another_term_says_nothing() -> None:
    seen = view(hubs=at_home(), peers={("b", 1): peer(gave_up=frozenset({(index, 2) for index in range(9)}))})
    assert not decided(seen).steps


def test_who_was_proposed_and_cannot_lead_is_withdrawn() -> None:
    hubs = at_home()
    mine = min(led_by("b"))
    hubs[mine] = hub("b", mine, proposed=Proposed(leader="c", members=("c",)))
    steps = decided(view(hubs=hubs, peers={("c", 1): peer(heard_s=NOW - 0.6)})).steps
    assert [(s.hub, s.why, s.after.term, s.after.proposed) for s in steps] == [(mine, "withdraw", 3, None)]


def test_hubs_that_are_elsewhere_are_moved_few_at_a_time() -> None:
    hubs = {index: hub("a", index) for index in range(9)}
    steps = decided(view(hubs=hubs), moves_max=2).steps
    assert [step.why for step in steps] == ["propose"] * 2
    assert all(
        step.after.leader == "a" and step.after.term == 3 and step.ended_term is None for step in steps
    )
    hubs |= {step.hub: Stored(step.after, 99) for step in steps}
    assert not decided(view(hubs=hubs), moves_max=2).steps


def test_hubs_of_a_draining_node_are_moved() -> None:
    seen = view(hubs=at_home())
    seen = replace(seen, nodes={**seen.nodes, **dict([node("b", is_draining=True)])})
    proposed = {step.hub: step.after.proposed for step in decided(seen, moves_max=9).steps}
    assert led_by("b") <= proposed.keys()
    assert all(p is not None and p.leader != "b" for p in proposed.values())


def test_a_short_silence_moves_nothing() -> None:
    assert not decided(view(hubs=at_home(), peers={("b", 1): peer(heard_s=NOW - 0.6)})).steps


def test_who_is_not_ready_is_given_nothing() -> None:
    hubs = {index: hub("a", index) for index in range(9)}
    peers = {("b", 1): peer(is_ready=False), ("c", 1): peer(is_ready=False)}
    assert not decided(view(hubs=hubs, peers=peers)).steps


def test_what_a_commit_was_asked_to_end_is_neither_granted_nor_asked_for_twice() -> None:
    mine = min(led_by("b"))
    dead = {("b", 1): replace(peer(), dead_s=NOW)}
    seen = view(hubs=at_home(), peers=dead, replacing=frozenset({(mine, 3)}))
    assert {step.hub for step in decided(seen).steps} == led_by("b") - {mine}
    well = decided(view(hubs=at_home(), replacing=frozenset({(mine, 3)})))
    assert well.tables["b", 1] == {(index, 3) for index in led_by("b") - {mine}}


@pytest.mark.parametrize("state", [CUT_OFF, replace(peer(), dead_s=NOW)])
def test_a_logged_hub_is_not_given_to_another_node(state: object) -> None:
    classes = {"chat": ClassRecord(version=1, hubs=9, members=3, durability="durable")}
    seen = view(hubs=at_home(), classes=classes, peers={("b", 1): state}, tables={})  # type: ignore[dict-item]
    assert not decided(seen).steps


def test_a_logged_hub_is_taken_back_by_its_node_when_that_started_again() -> None:
    classes = {"chat": ClassRecord(version=1, hubs=9, durability="durable")}
    seen = view(hubs=at_home(), classes=classes, peers={("b", 2): peer()})
    seen = replace(seen, nodes={**seen.nodes, **dict([node("b", 2)])})
    steps = decided(seen).steps
    assert {(s.hub, s.why) for s in steps} == {(index, "started again") for index in led_by("b")}
    assert {(s.after.leader, s.after.incarnation, s.after.term) for s in steps} == {("b", 2, 4)}


# -- voters --


def census_of(decision: Decision) -> VotersRecord | None:
    values = [w.value for c in decision.commits for w in c.writes if w.key == VOTERS]
    return parse(VotersRecord, VOTERS, values[0]) if values else None


def test_the_first_controller_counts_who_is_registered() -> None:
    decision = decided(view(voters=None))
    assert (
        census_of(decision) == VotersRecord(nodes=("a", "b", "c")) and decision.commits[0].expect[VOTERS] == 0
    )


def test_who_joins_is_counted_beside_the_census_before_until_leads_on_that_one_are_over() -> None:
    old = Stored(VotersRecord(nodes=("a", "b")), 6)
    assert census_of(decided(view(voters=old))) == VotersRecord(nodes=("a", "b", "c"), before=("a", "b"))
    joint = Stored(VotersRecord(nodes=("a", "b", "c"), before=("a", "b")), 7)
    assert census_of(decided(view(voters=joint, voters_s=NOW - TIMING.wait_s + 0.1))) is None
    over = decided(view(voters=joint, voters_s=NOW - TIMING.wait_s - 0.1))
    assert census_of(over) == VotersRecord(nodes=("a", "b", "c"))
    # A voter whose last known acknowledgement is old may have extended a leader lease with the previous
    # voters.
    peers = {(name, 1): peer(acknowledged_until_s=NOW - 0.2) for name in "bc"}
    assert census_of(decided(view(voters=joint, voters_s=NOW - TIMING.wait_s - 0.1, peers=peers))) is None


def test_who_comes_or_goes_while_the_census_changes_changes_it_beside_the_same_one_before() -> None:
    joint = Stored(VotersRecord(nodes=("a", "b"), before=("a",)), 7)
    new = view(voters=joint, voters_s=NOW - TIMING.wait_s + 0.1)
    assert census_of(decided(new)) == VotersRecord(nodes=("a", "b", "c"), before=("a",))
    left = view("a", voters=joint, voters_s=NOW - TIMING.wait_s + 0.1)
    assert census_of(decided(left)) is None, "one of the two that come is no majority"
    three = Stored(VotersRecord(nodes=("a", "b", "c"), before=("a",)), 7)
    left = replace(view(voters=three, voters_s=NOW), nodes=dict([node("a"), node("b")]))
    assert census_of(decided(left)) == VotersRecord(nodes=("a", "b"), before=("a",))


def test_who_is_dead_counts_in_the_census_before_from_when_that_is_known_as_long_as_its_record_stands() -> (
    None
):
    """The founder died while its first nodes were counted."""
    joint = Stored(VotersRecord(nodes=("a", "b", "c"), before=("c",)), 7)
    long_ago, of_late = NOW - TIMING.wait_s - 0.2, NOW - TIMING.wait_s + 0.1

    def seen(dead_s: float, heard_s: float = LONG_AGO) -> View:
        return view(voters=joint, peers={("c", 1): Peer(dead_s=dead_s, heard_s=heard_s)}, voters_s=long_ago)

    known = replace(
        seen(long_ago), peers={**seen(long_ago).peers, ("d", 1): peer()}, nodes=seen(long_ago).nodes
    )
    (commit,) = decided(known).commits
    assert census_of(decided(known)) == VotersRecord(nodes=("a", "b", "c"))
    assert commit.expect["nodes/c"] == known.nodes["c"].revision, "its name may be another's by then"
    assert census_of(decided(seen(of_late))) is None, "it may have helped somebody until then"
    assert census_of(decided(seen(long_ago, heard_s=NOW))) is None, "it was heard, so it was not dead"
    gone = replace(known, nodes={name: kept for name, kept in known.nodes.items() if name != "c"})
    assert decided(gone).commits == (), "whoever has its name by now may not be known yet"
    again = replace(known, nodes={**known.nodes, **dict([node("c", 2)])})
    assert decided(again).commits == ()


def test_a_majority_of_the_census_that_comes_has_to_live() -> None:
    dead = {(name, 1): Peer(dead_s=LONG_AGO) for name in "bc"}
    for before in ("a", "abc"):
        joint = Stored(VotersRecord(nodes=("a", "b", "c"), before=tuple(before)), 7)
        assert decided(view(voters=joint, peers=dict(dead), hubs=at_home())).commits == ()


def test_who_is_replaced_because_the_dead_help_nobody_is_replaced_only_while_their_records_stand() -> None:
    joint = Stored(VotersRecord(nodes=("a", "b", "c"), before=("d",)), 7)
    seen = view("abcd", hubs=at_home(), voters=joint, tables={}, voters_s=LONG_AGO)
    peers = {("b", 1): replace(CUT_OFF, lease_until_s=LONG_AGO), ("d", 1): Peer(dead_s=LONG_AGO)}
    decision = decided(replace(seen, peers={**seen.peers, **peers}))
    assert led_by("b") <= {step.hub for step in decision.steps if step.why == "lead ended"}
    assert all(commit.expect["nodes/d"] == seen.nodes["d"].revision for commit in decision.commits)


def test_both_censuses_need_their_majority() -> None:
    joint = VotersRecord(nodes=("a", "b", "c", "d"), before=("a", "e", "f"))
    assert not voters.is_majority(joint, "abc") and not voters.is_majority(joint, "aefb")
    assert not voters.is_majority(joint, "abef") and voters.is_majority(joint, "abce")


def test_half_is_no_majority() -> None:
    assert not voters.may_extend_lease(VotersRecord(nodes=("a", "b", "c", "d")), {"a", "b"})
    assert voters.may_extend_lease(VotersRecord(nodes=("a", "b", "c", "d")), {"a", "b", "c"})
    assert not voters.may_extend_lease(VotersRecord(nodes=()), {"a"})


def test_an_operator_can_take_out_nodes_that_are_gone_for_good() -> None:
    seen = view("ab", voters=Stored(VotersRecord(nodes=tuple("abcde")), 6))
    change = voters.without(seen, "cde")
    assert change is not None and change.expect == {VOTERS: 6}
    (write,) = change.writes
    assert parse(VotersRecord, VOTERS, write.value) == VotersRecord(nodes=("a", "b"))


# -- on_partition --

SERVE = ClassRecord(version=1, hubs=1, on_partition="serve")
PAUSE = ClassRecord(version=1, hubs=1)
LOGGED = ClassRecord(version=1, hubs=1, on_partition="serve", durability="durable")


@pytest.mark.parametrize(
    ("room_class", "heard", "acts"),
    [
        (PAUSE, "abc", None),
        (LOGGED, "abc", None),
        (SERVE, "abc", "a"),
        (SERVE, "bc", "b"),
        (SERVE, "cd", "c"),
        (SERVE, "d", None),
    ],
)
def test_on_a_side_without_a_controller_the_leader_acts_or_the_first_member_that_is_heard(
    room_class: ClassRecord, heard: str, acts: str | None
) -> None:
    record = hub("a", members=("a", "b", "c")).record
    assert acting(record, room_class, dict.fromkeys(heard, 1)) == (acts and (acts, 1))


def test_a_process_that_started_again_does_not_act_for_the_one_before_it() -> None:
    assert acting(hub("a").record, SERVE, {"a": 2}) is None


def test_only_changes_of_the_term_end_one() -> None:
    record = hub("a").record
    assert Step(1, None, record, "new").ended_term is None
    assert Step(1, record, hub("b", term=4).record, "dead").ended_term == (1, 3)


def test_the_first_hubs_are_made_while_nobody_is_ready_and_nothing_else_is_done() -> None:
    """No node knows all hubs before they exist, and a node that does not is not ready."""
    known = view("abc", classes={"chat": ClassRecord(version=1, hubs=2)})
    unready = {(name, 1): peer(is_ready=False) for name in "bc"}
    away = {("a", 1): peer(is_ready=False, lease_until_s=None)}
    steps = decided(replace(known, peers={**known.peers, **unready, **away})).steps
    assert {(step.hub, step.why) for step in steps} == {(1, "new"), (2, "new")}
    assert {step.after.leader for step in steps} <= {"b", "c"}, "a has no lead"
    one = replace(known, peers={**known.peers, **unready})
    assert {step.after.leader for step in decided(one).steps} == {"a"}, "who is ready comes first"
    dead = {("c", 1): Peer(dead_s=NOW)} | {(name, 1): peer(is_ready=False) for name in "ab"}
    assert decided(view("abc", {7: hub("c")}, dead)).steps == ()
