"""Cases of single stores: login, certificates, names with several addresses, deleted and recreated nodes."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordination.conftest import Opener, only_servers, only_zookeeper
from coordination.stores import Etcd, Members, Store, ZooKeeper
from coordination.waiting import eventually, gives
from hubsub.coordination import Changes, Delete, Entry, Put, open_url
from hubsub.coordination.zookeeper_session import Session
from hubsub.errors import CoordinatorRefusedError, CoordinatorUnreachableError, ExpectationError

Start = Callable[..., Etcd]


@pytest.fixture
def etcd(needs: Callable[..., None], tmp_path: Path) -> Iterator[Start]:
    """Starts an etcd of one member."""
    needs("etcd")
    started: list[Etcd] = []

    def start(options: str = "", tls: bool = False) -> Etcd:
        started.append(Etcd(tmp_path, 1, options, tls))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def post(etcd: Etcd, path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{etcd.ports[0]}/v3/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10):
        pass


async def test_etcd_asks_for_a_password_and_for_a_new_token_when_one_is_too_old(etcd: Start) -> None:
    store = etcd("--auth-token-ttl 1")
    post(store, "auth/user/add", {"name": "root", "password": "hush"})
    post(store, "auth/user/grant", {"user": "root", "role": "root"})
    post(store, "auth/enable", {})
    for login in ("", "root:wrong@"):
        with pytest.raises(CoordinatorRefusedError):
            await open_url(store.url(store.ports, "t", login=login))
    async with await open_url(store.url(store.ports, "t", login="root:hush@")) as coordinator:
        made = await coordinator.commit({"hubs/1": 0}, [Put("hubs/1", b"1")])
        watch = coordinator.watch("hubs")
        assert (await anext(watch)).whole
        coordinator._gateway._token = "over.1"  # type: ignore[attr-defined]
        await coordinator.commit(made, [Put("hubs/1", b"2")])
        assert (await anext(watch)).entries[0].value == b"2"


async def test_etcd_over_tls_is_checked_by_its_certificate(
    etcd: Start, needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("openssl")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=store"
        f" -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout {tmp_path}/key.pem -out {tmp_path}/cert.pem"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    store = etcd(f"--cert-file {tmp_path}/cert.pem --key-file {tmp_path}/key.pem", tls=True)
    for host in ("127.0.0.1", "localhost"):
        url = f"etcd://{host}:{store.ports[0]}/t?ca={tmp_path}/cert.pem"
        async with await open_url(url) as coordinator:
            await coordinator.commit({}, [Put(f"hubs/{host}", b"")])
    with pytest.raises(CoordinatorUnreachableError, match="certificate"):
        await open_url(f"etcd://127.0.0.1:{store.ports[0]}/t?tls=true&timeout=1s")


@only_zookeeper
async def test_zookeeper_keeps_from_others_what_was_written_with_a_password(
    store: Store, prefix: str
) -> None:
    assert isinstance(store, ZooKeeper)
    prefix = prefix.replace("/", "-locked-")  # At the top level: the creator of a node may lock it.
    async with await open_url(store.url(store.ports, prefix, login="me:hush@")) as coordinator:
        await coordinator.commit({}, [Put("hubs/1", b"mine")])
        entry = await coordinator.get("hubs/1")
        assert entry is not None and entry.value == b"mine"
        async with await open_url(store.url(store.ports, prefix)) as other:
            with pytest.raises(CoordinatorRefusedError):
                await other.get("hubs/1")
            with pytest.raises(CoordinatorRefusedError):
                await other.commit({}, [Put("hubs/2", b"")])


@only_servers
async def test_a_name_stands_for_all_its_addresses(
    store: Store, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, Members)
    look_up = socket.getaddrinfo

    def two(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "store.example":
            return look_up(host, port, *args, **kwargs)
        # Nobody listens at the first address.
        return [row for at in ("127.0.0.2", "127.0.0.1") for row in look_up(at, port, 0, socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    url = f"{store.scheme}://store.example:{store.ports[0]}/{prefix}"
    async with await open_url(url) as coordinator:
        made = await coordinator.commit({}, [Put("hubs/1", b"")])
        assert await coordinator.get("hubs/1") is not None and made["hubs/1"]


@only_zookeeper
async def test_a_zookeeper_node_made_anew_between_reading_and_writing_is_noticed(
    store: Store, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have version 0, so a check of the node's version alone would pass."""
    assert isinstance(store, ZooKeeper)
    coordinator, other = await opened(), await opened()
    old = await coordinator.commit({}, [Put("hubs/1", b"same")])
    tell, met = Session.commit, []

    async def tell_late(session: Session, transaction: Any) -> list[Any]:
        if not met:
            met.append(True)
            await other.commit({}, [Delete("hubs/1")])
            await other.commit({}, [Put("hubs/1", b"same")])
        return await tell(session, transaction)

    monkeypatch.setattr(Session, "commit", tell_late)
    with pytest.raises(ExpectationError):
        await coordinator.commit(old, [Put("hubs/1", b"wrong")])
    entry = await other.get("hubs/1")
    assert met and entry is not None and entry.value == b"same"


@only_zookeeper
async def test_a_zookeeper_node_that_goes_and_comes_between_two_notices_is_seen(
    store: Store, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion causes two notices, of the node and of its directory; the node exists again when the
    second arrives."""
    coordinator, other = await opened(), await opened()
    await coordinator.commit({}, [Put("hubs/1", b"first")])
    soon = Session.soon
    held: list[Callable[[], None]] = []

    def soon_but_for_directories(session: Session, call: Callable[..., None]) -> Callable[..., None]:
        def told(event: Any) -> None:
            if event.path.endswith("/hubs"):
                held.append(lambda: call(event))
            else:
                call(event)

        return soon(session, told)

    monkeypatch.setattr(Session, "soon", soon_but_for_directories)
    watch = other.watch("hubs")
    assert (await gives(watch)).whole
    await coordinator.commit({}, [Delete("hubs/1")])
    assert await gives(watch) == Changes(False, (), ("hubs/1",))
    made = await coordinator.commit({}, [Put("hubs/1", b"again")])
    await eventually(lambda: bool(held))
    held.pop()()
    assert await gives(watch) == Changes(False, (Entry("hubs/1", b"again", made["hubs/1"]),))


@only_zookeeper
async def test_zookeeper_grants_no_lease_longer_than_its_sessions(store: Store, opened: Opener) -> None:
    assert isinstance(store, ZooKeeper)
    coordinator = await opened()
    longest_s = 20 * store.tick_ms / 1_000
    lease = await coordinator.lease(1_000)
    assert lease.ttl_s == 0.75 * longest_s
    # kazoo connects within the session that it asks for, divided by the servers: a much shorter one may never connect.
    shortest_s = 2 * store.tick_ms / 1_000
    assert (await coordinator.lease(0.6 * shortest_s)).ttl_s == 0.75 * shortest_s
