"""The embedded coordinator: admission of members, voters, and the time until a dead leader is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordination.waiting import PATIENCE_S, patiently
from hubsub.config import Config, resolve
from hubsub.coordination import Put, embedded, open_coordinator
from hubsub.coordination.embedded import EmbeddedCoordinator
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.errors import (
    ConfigError,
    CoordinatorFilesError,
    DuplicateNodeError,
    JoinError,
    OtherClusterError,
    StartError,
    WrongSecretError,
)

SECRET = b"a secret of tests"

Member = Callable[..., Awaitable[EmbeddedCoordinator]]

pytestmark = pytest.mark.usefixtures("core")


@pytest.fixture
def core(needs: Callable[..., None]) -> None:
    needs("hubsub-core")


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    """Starts members in this process; they end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, *join: str, **more: Any) -> EmbeddedCoordinator:
            setup = {
                "directory": str(tmp_path / name),
                "node": name,
                "listen": "127.0.0.1:0",
                "secret": SECRET,
            }
            setup |= {"join": list(join), "join_ms": 300} | more
            return await stack.enter_async_context(await EmbeddedCoordinator.open(setup))

        yield start


async def address(coordinator: EmbeddedCoordinator) -> str:
    status = await coordinator.status()
    return str(status["members"][status["node"]][1])


async def voters(coordinator: EmbeddedCoordinator, *names: str) -> None:
    """Waits until exactly these members vote."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            members = (await coordinator.status())["members"].values()
            if {name for name, _, votes in members if votes} == set(names):
                return
            await asyncio.sleep(0.01)


# -- admission --


async def test_one_node_is_a_cluster_and_finds_it_again(member: Member) -> None:
    alone = await member("a")
    made = await alone.commit({"hubs/1": 0}, [Put("hubs/1", b"kept")])
    before = await alone.status()
    await alone.close()
    again = await member("a")
    entry = await again.get("hubs/1")
    assert entry is not None and (entry.value, entry.revision) == (b"kept", made["hubs/1"])
    assert (await again.status())["cluster"] == before["cluster"]
    assert before["store_bytes_max"] == again.store_bytes_max, "of which rooms may have nine tenths"


async def test_a_member_whose_address_changed_is_found_again(member: Member) -> None:
    first = await member("a")
    others = [await member(name, await address(first)) for name in ("b", "c")]
    await voters(first, "a", "b", "c")
    before = await address(others[0])
    await others[0].close()
    again = await member("b")  # Another port, and no address to join.
    async with asyncio.timeout(PATIENCE_S):
        while before in str((await first.status())["members"]):
            await asyncio.sleep(0.01)
    await patiently(again, Put("hubs/1", b""))


async def test_a_member_of_several_waits_for_the_others_and_says_so(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await member("a")
    members = {"a": first} | {name: await member(name, await address(first)) for name in ("b", "c")}
    await voters(first, *members)
    at = {name: await address(one) for name, one in members.items()}
    for one in members.values():
        await one.close()
    again = await member("a", listen=at["a"], request_ms=300)
    monkeypatch.setattr(embedded, "LEADER_LOG_S", 0.0)
    others = [f"{name} at {at[name]}" for name in ("b", "c")]
    with capture_logs() as logs, pytest.raises(JoinError, match="have no leader") as caught:
        await again.wait_leader(0)
    assert ", ".join(others) in str(caught.value) and "hint: start the others too" in str(caught.value)
    assert [row["others"] for row in logs if row["event"].startswith("waits until the members")] == [others]
    waits = asyncio.create_task(again.wait_leader(PATIENCE_S))
    await member("b", listen=at["b"])
    await waits
    await again.commit({}, [Put("hubs/1", b"two of three")])


async def test_who_joins_tries_each_address_of_each_name_and_tells_why_none_did(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await member("a")
    port = (await address(first)).rpartition(":")[2]
    with socket.socket() as silent:  # Bound and not listening: no other process gets the port.
        silent.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(JoinError) as caught:
            await member("b", closed, "no-such-host.invalid:3224")
        told = str(caught.value)
        assert f"{closed}: not sent: Connection refused" in told and "no-such-host.invalid:3224: " in told
        assert "hint: " in told
        joined = await member("b", closed, "no-such-host.invalid:3224", f"localhost:{port}")
    await patiently(joined, Put("hubs/1", b""))


async def test_who_has_another_secret_is_refused_on_either_side(member: Member) -> None:
    first = await member("a")
    with pytest.raises(WrongSecretError) as caught:
        await member("b", await address(first), secret=b"a guess that is wrong")
    assert await address(first) in str(caught.value)
    assert len((await first.status())["members"]) == 1


async def test_the_directory_of_another_cluster_is_refused(member: Member) -> None:
    first, other = await member("a"), await member("b")
    await other.close()
    with pytest.raises(OtherClusterError):
        await member("b", await address(first))
    assert len((await first.status())["members"]) == 1


async def test_a_name_is_one_nodes_until_it_was_away_for_long(member: Member, tmp_path: Path) -> None:
    first = await member("a", away_ms=300)
    where = await address(first)
    second = await member("b", where)
    with pytest.raises(DuplicateNodeError):
        await member("b", where, directory=str(tmp_path / "new"))
    await second.close()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(DuplicateNodeError):
                again = await member("b", where, directory=str(tmp_path / "new"))
                break
    await patiently(again, Put("hubs/1", b""))
    assert sorted(name for name, _, _ in (await first.status())["members"].values()) == ["a", "b"]


async def test_a_directory_in_use_or_damaged_is_refused(member: Member, tmp_path: Path) -> None:
    running = await member("a")
    with pytest.raises(CoordinatorFilesError, match="in use by another process"):
        await member("a")
    await running.close()
    identity = tmp_path / "a" / "identity"
    found = identity.read_bytes()
    identity.write_bytes(found[:-1] + bytes([found[-1] ^ 1]))
    with pytest.raises(CoordinatorFilesError, match="damaged"):
        await member("a")


async def test_an_address_that_cannot_be_listened_on_is_told(member: Member) -> None:
    taken = await address(await member("a"))
    with pytest.raises(StartError, match="cannot listen"):
        await member("b", listen=taken)


# -- voters --


async def test_a_voter_that_is_away_for_long_is_replaced_by_one_that_learns(member: Member) -> None:
    first = await member("a", away_ms=500)
    where = await address(first)
    second, _ = await member("b", where, away_ms=500), await member("c", where, away_ms=500)
    await voters(first, "a", "b", "c")
    await member("d", where, away_ms=500)
    await voters(first, "a", "b", "c")
    await second.close()
    await voters(first, "a", "c", "d")
    await patiently(first, Put("hubs/1", b""))


# -- permanent failures --


def test_a_disk_that_takes_nothing_is_told_and_nothing_waits_for_it_any_more(tmp_path: Path) -> None:
    setup = {"directory": str(tmp_path / "a"), "node": "a", "listen": "127.0.0.1:0", "secret": "s"}
    command = [sys.executable, str(Path(__file__).with_name("full.py")), json.dumps(setup)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, err = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
    assert child.returncode == 0, err
    first, later, reason = json.loads(out.splitlines()[-1])
    assert first in ("coordinator_unknown", "coordinator_unreachable"), out
    assert later == "coordinator_unreachable" and "File too large" in reason, out


# -- configuration --


def config(**keys: Any) -> Config:
    return resolve({"node": "a", **keys}, {}, {})


async def test_without_a_data_directory_a_node_alone_has_its_store_in_memory(tmp_path: Path) -> None:
    async with await open_coordinator(config()) as coordinator:
        assert isinstance(coordinator, MemoryCoordinator)
    for keys in ({"raft": "127.0.0.1:0"}, {"join": ["127.0.0.1:1"]}):
        with pytest.raises(ConfigError, match="data"):
            await open_coordinator(config(**keys, link="127.0.0.1:0", cluster_secret=SECRET.decode()))
        with pytest.raises(ConfigError, match="cluster_secret"):
            await open_coordinator(config(data=str(tmp_path), link="127.0.0.1:0", **keys))


async def test_the_configuration_opens_a_cluster_and_joins_it(tmp_path: Path) -> None:
    both = {"link": "127.0.0.1:0", "raft": "127.0.0.1:0", "cluster_secret": SECRET.decode()}
    one = config(data=str(tmp_path / "a"), coordinator="embedded", **both)
    async with await open_coordinator(one) as first:
        assert isinstance(first, EmbeddedCoordinator)
        two = config(node="b", data=str(tmp_path / "b"), join=[await address(first)], **both)
        async with await open_coordinator(two) as second:
            made = await second.commit({}, [Put("hubs/1", b"1")])
            entry = await first.get("hubs/1")
            assert entry is not None and entry.revision == made["hubs/1"]
            assert await first.listens_at() == await address(first)
        assert (tmp_path / "b" / "coordinator" / "identity").exists()
