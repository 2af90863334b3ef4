"""`CorePlane` over a data plane that enforces the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hubsub.control.cluster import peer_addresses as roster_module
from hubsub.control.cluster.core_plane import API, CONTROL, REQUESTS_MAX, CorePlane
from hubsub.control.cluster.plane import RPC_BYTES_MAX, Neighbour, Route
from hubsub.errors import PeerError, StoppingError, TimedOutError, TooBusyError

from .fake_data import FakeData, Heard, News, Snapshot
from .planes import CLASSES, ME, OTHER, plane, row
from .played import play, until


def neighbour(name: str, link: str) -> Neighbour:
    return Neighbour(name=name, incarnation=4, addresses={"link": link}, shards=2, may_lead=True)


# -- routes and hubs --


def test_classes_come_in_their_order_and_the_default_one_is_the_last() -> None:
    async def test() -> None:
        data = FakeData()
        plane(data)
        assert list(data.hubs_of) == ["chat", "log", "default"] and data.logged == {"log"}

    play(test)


def test_leads_are_claimed_of_ephemeral_hubs_alone_with_those_to_be_given_up_marked() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(1, "chat"), row(2, "chat", gives_up=True), row(3, "chat", OTHER), row(4, "log")])
        assert data.leads == {(1, 1, False), (2, 1, True)}
        core.routes([row(1, "chat", ("a", 6)), row(2, "chat", OTHER, 2), row(4, "log")])
        assert data.leads == set(), "an earlier process of the name is another one"
        await core.close()

    play(test)


def test_a_hub_that_is_served_without_a_lead_is_so_from_the_first_moment_to_the_last() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(1, "chat"), row(2, "chat", OTHER)])
        data.served.clear()
        core.routes([row(1, "chat", acting_leader=ME), row(2, "chat", OTHER, acting_leader=ME)])
        assert data.served == [[1, 2], [1, 2]] and {data.rows[1].leader, data.rows[2].leader} == {ME}
        assert data.leads == {(1, 1, False)}, "it claims what its records say"
        core.routes([row(1, "chat"), row(2, "chat", OTHER, 2)])
        assert data.served[2:] == [[1, 2], []] and data.rows[2].leader == OTHER
        await core.close()

    play(test)


def test_who_has_a_lead_or_hears_a_controller_is_not_cut_off() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        now = asyncio.get_running_loop().time()
        for until_s, heeds, is_cut_off in [
            (None, 0, True), (now, 0, True), (now + 1, 0, False), (now, 3, False), (None, 3, False),
        ]:  # fmt: skip
            data.snapshot = Snapshot(until_s=until_s, acknowledged_term=heeds)
            assert core.is_cut_off() == is_cut_off
        await core.close()

    play(test)


# -- the roster --


def test_names_of_peers_are_looked_up_and_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        found: dict[str, tuple[str, ...]] = {}

        async def look_up(address: str) -> tuple[str, ...]:
            return found.get(address, ())

        monkeypatch.setattr(roster_module, "_addresses_of", look_up)
        core.roster([neighbour("b", "10.0.0.2:3222"), neighbour("c", "c.example:3222")])
        assert data.roster == [("b", 4, ("10.0.0.2:3222",), 2), ("c", 4, (), 2)]
        found["c.example:3222"] = ("10.0.0.3:3222",)
        await until(lambda: data.roster[1][2] == ("10.0.0.3:3222",))
        found["c.example:3222"] = ("10.0.0.4:3222", "10.0.0.5:3222")
        await until(lambda: len(data.roster[1][2]) == 2, within_s=31)
        found.clear()
        await asyncio.sleep(60)
        assert len(data.roster[1][2]) == 2, "it keeps what it had"
        core.roster([neighbour("b", "10.0.0.2:3222")])
        assert [name for name, *_ in data.roster] == ["b"]
        await core.close()

    play(test)


def test_a_real_name_becomes_an_address() -> None:
    assert "127.0.0.1:9" in asyncio.run(roster_module._addresses_of("localhost:9"))
    assert asyncio.run(roster_module._addresses_of("no-such-host.invalid:9")) == ()


BAD = ("x" * 64 + ".example:9", "c..example:9", "no-port", "10.0.0.1:99999", ":9", "[fe80::1%x]:9")


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_name_has_no_address_and_keeps_no_other_from_one(bad: str) -> None:
    async def test() -> None:
        assert await roster_module._addresses_of(bad) == ()
        data = FakeData()
        core, _ = plane(data)
        core.roster([neighbour("b", bad), neighbour("c", "localhost:9")])
        async with asyncio.timeout(60):
            while not data.roster[1][2]:
                await asyncio.sleep(0.01)
        assert data.roster[0][2] == ()
        await core.close()

    asyncio.run(test())


# -- leader leases --


def test_tables_end_when_the_lease_does_and_a_past_one_resigns() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        now = asyncio.get_running_loop().time()
        tables = {ME: frozenset({(2, 1), (1, 4)}), OTHER: frozenset[tuple[int, int]]()}
        await core.grants(3, now + 2.0, now - 0.1, tables, 9)
        assert data.tables == (3, now + 2.0, now - 0.1, tables, 9)
        await core.grants(3, now, now, {}, 9)
        assert data.tables is None

    play(test)


def test_tables_that_cannot_be_taken_now_are_given_again() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        data.refusals = [TooBusyError(), TimedOutError()]
        await core.grants(3, asyncio.get_running_loop().time() + 2.0, 0.0, {}, -1)
        assert data.tables is not None and data.tables[4] == 0

    play(test)


def test_a_data_plane_that_has_ended_or_does_not_answer_holds_up_no_end_of_a_mandate() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 2.0
        await core.grants(3, until_s, loop.time(), {ME: frozenset({(1, 4)})}, 1)
        data.refusal = TimedOutError()
        await core.grants(3, loop.time(), 0.0, {}, 1)
        assert until_s <= loop.time() < until_s + 1, "until then it may have granted"
        at_s = loop.time()
        data.refusal = StoppingError()
        await core.grants(4, at_s + 2.0, at_s, {}, 1)
        await core.grants(4, at_s, at_s, {}, 1)
        assert loop.time() == at_s

    play(test)


def test_what_is_known_of_peers_is_of_one_mandate() -> None:
    async def test() -> None:
        data = FakeData()
        core, face = plane(data)
        data.snapshot = Snapshot(
            3,
            {
                ME: Heard(4.9, suspects=frozenset({"b"})),
                OTHER: Heard(4.9, 3.0, 4.8, 5.5, frozenset({(1, 2)})),
                ("c", 5): Heard(4.9, suspects=frozenset({"b"})),
            },
        )
        data.ready = [OTHER]
        peers = core.peers(3)
        other = peers[OTHER]
        assert (other.heard_s, other.acknowledged_s, other.acknowledged_until_s, other.lease_until_s) == (
            4.9,
            3.0,
            4.8,
            5.5,
        )
        assert other.suspected_by == {"a", "c"} and other.gave_up == {(1, 2)} and other.is_ready
        assert not peers[ME].is_ready and peers[ME].acknowledged_s is None
        for controller_term in (0, 4):
            assert core.peers(controller_term)[OTHER].acknowledged_s is None
            assert core.peers(controller_term)[OTHER].lease_until_s is None
        assert data.on_peer is not None
        before = face.changes
        data.on_peer(News("down", "b", 4, "eof"))
        assert not core.peers(3)[OTHER].is_dead
        data.on_peer(News("dead", "b", 4))
        data.on_peer(News("down", "c", 5, "stopping"))
        data.on_peer(News("dead", "d", 1))
        peers = core.peers(3)
        assert all(peers[p].is_dead for p in (OTHER, ("c", 5))) and peers["d", 1].heard_s is None
        assert peers["d", 1].is_dead
        assert face.changes == before + 4
        assert data.on_lease is not None
        data.on_lease(News("changed"))
        assert face.changes == before + 5

    play(test)


# -- requests --


def pair() -> tuple[CorePlane, CorePlane, FakeData, FakeData]:
    one, two = FakeData(ME), FakeData(OTHER)
    one.others, two.others = {"b": two}, {"a": one}
    return plane(one)[0], plane(two)[0], one, two


def test_each_part_of_a_process_asks_its_like() -> None:
    async def test() -> None:
        one, two, _, _ = pair()
        assert await one.ask("b", b"x") == b"control of a: x"
        with pytest.raises(PeerError, match="cannot answer now"):
            await one.ask_part(API, "b", b"x")

        async def api(node: str, body: bytes) -> bytes:
            return b"api: " + body

        two.serve(API, api)
        assert await one.ask_part(API, "b", b"x") == b"api: x"
        with pytest.raises(PeerError, match=r"no answer \(there is no link"):
            await one.ask("c", b"x")
        await two.close()
        with pytest.raises(PeerError):
            await one.ask("b", b"x")

    play(test)


def test_a_question_that_is_too_long_is_not_sent_and_an_answer_is_told() -> None:
    async def test() -> None:
        one, two, _, data = pair()
        with pytest.raises(PeerError, match="too long"):
            await one.ask("b", bytes(RPC_BYTES_MAX + 1))
        assert data.asked == 0

        async def long(node: str, body: bytes) -> bytes:
            return bytes(RPC_BYTES_MAX + 1)

        async def fails(node: str, body: bytes) -> bytes:
            raise RuntimeError("broken")

        for answer in (long, fails):
            two.serve(API, answer)
            with pytest.raises(PeerError, match="cannot answer now"):
                await one.ask_part(API, "b", b"x")
        two.serve(CONTROL, long)
        assert b"too long" in await one.ask("b", b"x")

    play(test)


def test_more_questions_than_are_answered_at_a_time_are_refused_and_not_kept() -> None:
    async def test() -> None:
        one, two, _, _ = pair()
        gate = asyncio.Event()

        async def waits(node: str, body: bytes) -> bytes:
            await gate.wait()
            return b"done"

        two.serve(API, waits)
        asked: Sequence[asyncio.Task[bytes]] = [
            asyncio.create_task(one.ask_part(API, "b", b"x")) for _ in range(REQUESTS_MAX)
        ]
        await asyncio.sleep(1)
        with pytest.raises(PeerError):
            await one.ask_part(API, "b", b"x")
        gate.set()
        assert await asyncio.gather(*asked) == [b"done"] * REQUESTS_MAX
        assert await one.ask_part(API, "b", b"x") == b"done"

    play(test)


# -- the rest --


def test_a_process_is_ready_when_it_holds_all_and_rooms_have_a_home() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        hubs = [(name, index) for name, record in CLASSES.items() for index in range(record.hubs)]
        rows = [
            Route(hub=hub, room_class=name, index=index, term=1, leader=None, members=())
            for hub, (name, index) in enumerate(hubs, 1)
        ]
        core.routes(rows[:-1])
        waits = asyncio.create_task(core.ready())
        await asyncio.sleep(1)
        data.ready = [OTHER]
        assert data.on_ready is not None
        data.on_ready()
        await asyncio.sleep(1)
        assert not waits.done()
        data.ready = [OTHER, ME]
        data.on_ready()
        await asyncio.sleep(1)
        assert not waits.done(), "a class has hubs that nobody told"
        core.routes(rows)
        await waits
        assert core.topic_route(b"x").index == 3

    play(test)


def test_a_load_is_what_was_done_since_the_last_one() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        data.shards = [{"delivered_total": 100, "bytes_out_total": 50, "connections": 3, "rooms": 2}] * 2
        assert await core.load() is None
        await asyncio.sleep(2)
        data.shards = [{"delivered_total": 300, "bytes_out_total": 150, "connections": 4, "rooms": 2}] * 2
        load = await core.load()
        assert load is not None
        assert (load.deliveries_per_second, load.bytes_out_per_second) == (200, 100)
        assert (load.connections, load.rooms) == (8, 4)

    play(test)


def test_who_keeps_clients_waiting_is_named_with_the_reason() -> None:
    async def test() -> None:
        one, _, data, _ = pair()
        one.roster([neighbour(name, f"10.0.0.{at}:3222") for at, name in enumerate("bcd", 2)])
        data.others |= {"d": FakeData(("d", 4))}
        data.ready = [ME, ("d", 4)]
        assert one.waits_for() == ["b (not ready)", "c (no link: it has died, or cannot be reached)"]
        data.ready += [OTHER]
        one.roster([neighbour("b", "10.0.0.2:3222"), neighbour("d", "10.0.0.4:3222")])
        assert one.waits_for() == []
        await one.close()

    play(test)


def test_classes_count_where_all_their_hubs_were_told_and_each_node_says_of_which_version() -> None:
    async def test() -> None:
        one, two, data, other = pair()
        for core in (one, two):
            core.classes({"chat": CLASSES["chat"]})
            core.routes([row(hub, "chat", OTHER) for hub in range(1, CLASSES["chat"].hubs + 1)])
        assert one.class_versions() == {"a": 1, "b": 1}
        both = {"chat": CLASSES["chat"], "default": CLASSES["default"]}
        one.classes(both)
        assert (data.said, other.said) == (1, 1), "hubs of the new one are not known yet"
        hubs = [row(hub, "chat", OTHER) for hub in range(1, 65)]
        one.routes([*hubs, *(row(hub, "default", OTHER) for hub in range(65, 129))])
        assert one.class_versions() == {"a": 2, "b": 1}
        await one.close()
        await two.close()

    play(test)
