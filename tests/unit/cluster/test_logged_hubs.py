"""Hubs with a log, which `CorePlane` opens and closes in a data plane."""

from __future__ import annotations

import asyncio

import pytest

from hubsub.control.cluster.logged_hubs import OPENING_MAX, RETRY_S
from hubsub.errors import DiskFullError, LogFailedError

from .fake_data import FakeData
from .planes import ME, OTHER, plane, row
from .played import play, until


def test_a_logged_hub_is_led_when_its_log_is_open_and_closed_when_it_is_led_no_more() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        data.gates[4] = asyncio.Event()
        core.routes([row(1, "chat"), row(4, "log"), row(5, "log"), row(6, "log", OTHER)])
        assert [data.rows[hub].leader for hub in (1, 4, 5, 6)] == [ME, None, None, OTHER]
        await until(lambda: 5 in data.open)
        core.pins("chat", {b"x": 5})
        data.gates[4].set()
        await until(lambda: data.rows[4].leader == ME and data.rows[5].leader == ME)
        assert data.open == {4: ("log", 4), 5: ("log", 5)}
        core.routes([row(1, "chat"), row(4, "log", OTHER, 2), row(5, "log"), row(6, "log", OTHER)])
        assert data.rows[4].leader == OTHER
        await until(lambda: 4 not in data.open)
        core.routes([row(4, "log", ME, 3), row(5, "log")])
        await until(lambda: data.rows[4].leader == ME)
        assert core.open_errors == {}
        await core.close()

    play(test)


def test_a_hub_that_changes_hands_while_its_log_opens_is_closed_again() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        data.gates[4] = asyncio.Event()
        core.routes([row(4, "log")])
        await until(lambda: 4 in data.opening)
        core.routes([row(4, "log", OTHER, 2)])
        data.gates[4].set()
        await until(lambda: not data.opening and 4 not in data.open)
        assert data.rows[4].leader == OTHER
        await core.close()

    play(test)


@pytest.mark.parametrize("broken", [DiskFullError(), RuntimeError("nobody thought of it")])
def test_a_hub_that_cannot_be_opened_is_named_tried_again_and_holds_up_no_other(broken: Exception) -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        data.broken[4] = broken
        core.routes([row(4, "log"), row(5, "log")])
        await until(lambda: data.rows[5].leader == ME and core.open_errors)
        assert list(core.open_errors) == [4] and data.rows[4].leader is None
        await asyncio.sleep(60)
        data.broken.clear()
        await until(lambda: data.rows[4].leader == ME, within_s=31)
        assert core.open_errors == {}
        await core.close()

    play(test)


def test_many_hubs_that_cannot_be_opened_hold_up_no_other() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        begun_s = asyncio.get_running_loop().time()
        last = OPENING_MAX + 1
        data.broken = {hub: DiskFullError() for hub in range(1, last)}
        core.routes([row(hub, "log") for hub in range(1, last + 1)])
        await until(lambda: data.rows[last].leader == ME)
        assert asyncio.get_running_loop().time() - begun_s < RETRY_S
        assert sorted(core.open_errors) == list(range(1, last))
        await core.close()

    play(test)


def test_a_hub_that_comes_back_while_it_closes_is_led_when_its_log_is_open_again() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(4, "log")])
        await until(lambda: data.rows[4].leader == ME)
        data.gates[4] = asyncio.Event()
        core.routes([row(4, "log", OTHER, 2)])
        await until(lambda: 4 in data.closing)
        core.routes([row(4, "log", ME, 3)])
        assert data.rows[4].leader is None
        data.gates[4].set()
        await until(lambda: data.rows[4].leader == ME)
        assert 4 in data.open
        await core.close()

    play(test)


def test_a_hub_without_a_record_that_cannot_be_closed_is_kept_and_not_offered_again() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(1, "log")])
        await until(lambda: 1 in data.open)
        assert core.claims().empty == {1}
        data.broken[1] = LogFailedError()
        core.routes([row(1, "log", gives_up=True, revision=5)])
        await until(lambda: bool(core.claims().retained))
        assert core.claims().retained == {1: 5} and not core.claims().sealed
        core.routes([row(1, "log", revision=6)])
        assert data.rows[1].leader == ME, "it is led on"
        assert not core.claims().empty, "it would be asked for and kept again without end"
        await core.close()

    play(test)
