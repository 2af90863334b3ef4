"""The embedded coordinator: this node is a member of the Raft group that holds the store (crates/hubsub-raft).

The member runs in a thread of the core. A request takes a ticket and becomes a future; replies are drained
when the core's descriptor is readable. Every node has the whole store, so watches are fed from its own copy:
they do not break, they pause while this node is cut off.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from hubsub.config import Config, is_wildcard, join_address, split_address
from hubsub.coordination.base import Coordinator, Page, Put, Write, join_key
from hubsub.coordination.lease import Lease
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.coordination.tasks import end
from hubsub.coordination.watch import Entry, Watch
from hubsub.errors import (
    ConfigError,
    CoordinatorError,
    CoordinatorFilesError,
    CoordinatorRefusedError,
    CoordinatorTooLargeError,
    CoordinatorUnknownError,
    CoordinatorUnreachableError,
    DuplicateNodeError,
    ExpectationError,
    JoinError,
    LeaseLostError,
    OtherClusterError,
    Problem,
    StartError,
    WrongSecretError,
)
from hubsub.node import CoordinatorCore
from hubsub.node.status import CoordinatorStatus

PORT_DEFAULT = 3224
VOTERS_MAX = 3
"""Other nodes are learners: a commit needs two of three, however many nodes there are."""
JOIN_MS = 30_000
"""For all addresses of `join` together."""
REQUEST_MS = 5_000
AWAY_MS = 15_000
"""A voter that is silent for this long loses its vote to a learner, and its name to a node that requests it. """
ANSWERS_MAX = 256
"""Replies handled before other work of the loop has its turn."""
WATCH_MS = 30_000
"""A watch request returns after this time without a change."""
RELEASE_S = 2.0
"""A lease that could not be given back in this time expires by itself."""
LEADER_WAIT_S = JOIN_MS / 1_000
"""How long a restarting member waits for the others: as long as a joining one."""
LEADER_LOG_S = 1.0
"""When a start that waits for members logs it."""
REACHED_S = 3.0
"""A start that takes longer logs whether this node can be reached at its advertised address."""
STORE_BYTES_MAX = 1 << 30
"""Limit of the store in bytes, as in crates/hubsub-raft/src/limits.rs."""
TTL_MS_MIN, TTL_MS_MAX = 500, 24 * 3_600_000

log = structlog.get_logger("hubsub.coordination")


async def open_embedded(config: Config) -> Coordinator:
    """Starts this node's member of the store: a new cluster, the one of its data directory, or that of `join`.

    Without a data directory, and without other nodes, the store is in memory. A member of several waits until
    they have a leader; when a whole cluster restarts, there is none while most are still missing.

    Args:
        config: Uses `node`, `data`, `raft`, `link`, `advertise`, `join` and `cluster_secret`.

    Raises:
        ConfigError: a key is missing.
        StartError: or a subclass.
    """
    listen = config.raft or _default_listen(config.link)
    alone = listen is None and not config.join
    if config.data is None:
        if alone:
            return MemoryCoordinator()
        hint = 'a directory of this node alone: data = "DIR", or --data DIR'
        raise ConfigError([Problem("data", None, "is needed by a node of a cluster", hint)])
    if not alone and config.cluster_secret is None:
        hint = "the same on all nodes: cluster_secret in the file, or HUBSUB_CLUSTER_SECRET"
        raise ConfigError([Problem("cluster_secret", None, "is needed by a node of a cluster", hint)])
    listen = listen or "127.0.0.1:0"
    host = config.advertise
    if host is None and is_wildcard(listen):
        host = own_host()
        log.info("other nodes reach the coordinator at the address of the route", host=host, listen=listen)
    setup = {
        "directory": str(Path(config.data) / "coordinator"),
        "node": config.node,
        "listen": listen,
        "advertise": host,
        "join": [_with_port(address) for address in config.join],
        "secret": config.cluster_secret.reveal().encode() if config.cluster_secret else b"",
    }
    if config.join:
        # No cluster is bootstrapped meanwhile, nor if no member answers.
        log.info("asks members to let this node in", join=list(config.join), wait_s=JOIN_MS / 1_000)
    look = asyncio.create_task(_check_reachable(host, split_address(listen)[1]))
    try:
        coordinator = await EmbeddedCoordinator.open(setup)
        try:
            await coordinator.wait_leader(LEADER_WAIT_S)
        except BaseException:
            await coordinator.close()
            raise
        return coordinator
    finally:
        await end(look)


class EmbeddedCoordinator(Coordinator):
    """A member of the cluster.

    Args:
        core: The core's member, started.
        prefix: Directory in front of all keys, for several coordinators in one cluster, as in tests.
    """

    store_bytes_max = STORE_BYTES_MAX

    def __init__(self, core: CoordinatorCore, prefix: str = "") -> None:
        super().__init__()
        self._core = core
        self._prefix = prefix
        self._loop = asyncio.get_running_loop()
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._closed = False
        self._loop.add_reader(core.wake_fd(), self._on_wake)

    @classmethod
    async def open(cls, setup: Mapping[str, Any], prefix: str = "") -> "EmbeddedCoordinator":
        """Starts a member.

        Args:
            setup: `directory`, `node` (name), `listen` (HOST:PORT), `advertise` (host or None: as bound),
                `join` (HOST:PORT of members; none: it bootstraps a cluster, unless its directory belongs to
                one), `join_ms` (for all of them), `secret` (bytes), `voters_max` (3 or 5), `request_ms`,
                `away_ms` (a voter that is silent for this long loses its vote to a learner, and its name to a
                node that requests it), `detours` (address to address). Missing keys have the values of this
                module.
        """
        defaults = {
            "join": [],
            "join_ms": JOIN_MS,
            "advertise": None,
            "voters_max": VOTERS_MAX,
            "request_ms": REQUEST_MS,
            "away_ms": AWAY_MS,
            "detours": {},
        }
        setup = {**defaults, **setup}
        try:
            core = await _started(setup)
        except OSError as error:
            raise StartError(f"the coordinator cannot listen ({error.strerror})", setup["listen"]) from None
        except RuntimeError as error:
            raise _not_started(*error.args) from None
        return cls(core, prefix)

    async def status(self) -> CoordinatorStatus:
        """This node's knowledge of the cluster; asks no other node."""
        status: CoordinatorStatus = await self.ask(self._core.status)
        return status

    async def listens_at(self) -> str | None:
        status = await self.status()
        mine = status["members"].get(status["node"])
        return None if mine is None else str(mine[1])

    async def wait_leader(self, within_s: float) -> None:
        """Waits until a leader of the known members has answered; returns at once if there are no other members.

        Args:
            within_s: Seconds; a request in flight at the end is still waited for.

        Raises:
            JoinError: no leader answered; has the reason of the last request.
        """
        status = await self.status()
        members = status["members"].items()
        others = sorted(f"{name} at {at}" for number, (name, at, _) in members if number != status["node"])
        if not others:
            return
        tell = self._loop.call_later(
            LEADER_LOG_S,
            lambda: log.warning(
                "waits until the members have a leader: more than half of those that vote have to run",
                others=others,
                wait_s=within_s,
            ),
        )
        ends = self._loop.time() + within_s
        try:
            while True:
                try:
                    # An empty commit: a leader answers it even while this node's copy of the store lags.
                    await self.ask(self._core.commit, [], [])
                    return
                except (CoordinatorUnreachableError, CoordinatorUnknownError) as error:
                    if self.failed is not None:
                        raise
                    if self._loop.time() >= ends:
                        hint = "start the others too: more than half of the members that vote have to run"
                        what = f"the members of its cluster have no leader after {within_s:g} s"
                        raise JoinError(what, f"{', '.join(others)}; {error.value}", hint) from None
        finally:
            tell.cancel()

    async def leave(self, node: int) -> None:
        """Removes a member from the cluster for good, this one or another; a leader hands over first."""
        await self.ask(self._core.leave, node)

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        self._closed = True
        self._loop.remove_reader(self._core.wake_fd())
        await asyncio.to_thread(self._core.stop)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoordinatorUnknownError(value="the coordinator was closed"))

    async def ask(self, call: Callable[..., None], *args: Any) -> Any:
        """Sends a request to the core and returns its reply."""
        if self._closed:
            raise CoordinatorUnreachableError(value="it was closed")
        if self.failed is not None:
            raise CoordinatorUnreachableError(value=self.failed)
        ticket = next(self._tickets)
        future = self._waiting[ticket] = self._loop.create_future()
        try:
            call(ticket, *args)
            return await future
        except RuntimeError as error:
            raise _error(*error.args) from None
        finally:
            del self._waiting[ticket]

    async def _get(self, key: str) -> Entry | None:
        found = await self._read(self._core.get, self._at(key))
        return None if found is None else Entry(key, *found)

    async def _page(self, directory: str, after: str, limit: int) -> Page:
        rows, more = await self._read(self._core.page, self._at(directory), after or None, limit)
        return Page(tuple(Entry(join_key(directory, name), value, rev) for name, value, rev in rows), more)

    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
        expected = [(self._at(key), revision) for key, revision in expect.items()]
        made = [(self._at(write.key), *_value_and_lease(write)) for write in writes]
        match await self.ask(self._core.commit, expected, made):
            case ("committed", revisions):
                return dict(zip((write.key for write in writes), revisions, strict=True))
            case ("mismatch", place, found):
                key = list(expect)[place]
                raise ExpectationError(key, expect[key], found)
            case _:
                raise LeaseLostError()

    async def _follow(self, watch: Watch) -> None:
        cursor, whole = None, list[Entry]()
        is_whole = False
        directory = self._at(watch.directory)
        while True:
            begins, ends, rows, cursor = await self._read(self._core.watch, directory, cursor, WATCH_MS)
            if begins:
                is_whole, whole = True, []
            for name, value, revision in rows:
                key = join_key(watch.directory, name)
                if is_whole:
                    whole.append(Entry(key, value, revision))
                elif value is None:
                    watch.delete(key)
                else:
                    watch.put(Entry(key, value, revision))
            if ends:
                is_whole = False
                watch.whole(whole)

    async def _grant(self, ttl_s: float) -> Lease:
        ttl_ms = min(max(round(ttl_s * 1_000), TTL_MS_MIN), TTL_MS_MAX)
        requested_s = time.monotonic()
        # A lease that was granted without a reply expires by itself, with no key bound to it.
        return EmbeddedLease(
            self, self._core, await self._read(self._core.grant, ttl_ms), ttl_ms / 1_000, requested_s
        )

    async def _read(self, call: Callable[..., None], *args: Any) -> Any:
        try:
            return await self.ask(call, *args)
        except CoordinatorUnknownError as error:
            raise CoordinatorUnreachableError(value=error.value) from None

    def _at(self, key: str) -> str:
        return f"{self._prefix}/{key}".strip("/")

    def _on_wake(self) -> None:
        for kind, ticket, *rest in self._core.drain(ANSWERS_MAX):
            future = self._waiting.get(ticket)
            if future is None or future.done():
                continue  # The caller has given up.
            if kind == "answer":
                future.set_result(*rest)
            else:
                future.set_exception(_error(*rest))
        if self.failed is None and (reason := self._core.failed()) is not None:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        """Fails all pending requests now: the core may never answer them."""
        self.failed = reason
        log.error(
            "the coordinator of this node has failed, restart it when the cause is mended", reason=reason
        )
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoordinatorUnknownError(value=reason))
        self.has_failed.set()


class EmbeddedLease(Lease):
    def __init__(
        self,
        coordinator: EmbeddedCoordinator,
        core: CoordinatorCore,
        number: int,
        ttl_s: float,
        requested_s: float,
    ) -> None:
        super().__init__(ttl_s, requested_s)
        self.id = number
        self._coordinator = coordinator
        self._core = core

    async def _renew(self) -> bool:
        try:
            await self._coordinator.ask(self._core.renew, self.id)
        except LeaseLostError:
            return False
        return True

    async def _end(self) -> None:
        with suppress(CoordinatorError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._coordinator.ask(self._core.release, self.id)


def _value_and_lease(write: Write) -> tuple[bytes | None, int | None]:
    """Value and lease, in the core's form."""
    if not isinstance(write, Put):
        return None, None
    return bytes(write.value), write.lease.id if isinstance(write.lease, EmbeddedLease) else None


TOO_LARGE = {"key_too_long", "value_too_long", "too_many_keys", "commit_too_large"}
UNREACHABLE = {"no_leader", "cluster_busy", "too_many_requests", "too_many_leases", "stopped"}


def _error(code: str, message: str) -> CoordinatorError:
    what, _, hint = message.partition("\nhint: ")
    if code == "unknown_outcome":
        return CoordinatorUnknownError(value=what)
    if code == "no_lease":
        return LeaseLostError()
    if code in UNREACHABLE:
        return CoordinatorUnreachableError(value=what)
    return (CoordinatorTooLargeError if code in TOO_LARGE else CoordinatorRefusedError)(
        value=what, hint=hint or None
    )


STARTS: dict[str, type[StartError]] = {
    "unreached": JoinError,
    "other_cluster": OtherClusterError,
    "duplicate_node": DuplicateNodeError,
    "wrong_secret": WrongSecretError,
    "nobody": JoinError,
    "files": CoordinatorFilesError,
}


async def _started(setup: Mapping[str, Any]) -> CoordinatorCore:
    """Creates the core, which may wait for members for `JOIN_MS`. If the caller is cancelled, for example by
    a stop request, it need not wait: the thread does not delay an exit, and stops a core that starts too
    late.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[CoordinatorCore] = loop.create_future()

    def tell(core: CoordinatorCore | None, error: Exception | None) -> None:
        if not done.done():
            done.set_result(core) if core is not None else done.set_exception(error or RuntimeError())
        elif core is not None:
            core.stop()

    def run() -> None:
        core, error = None, None
        try:
            core = CoordinatorCore(setup)
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # The loop has ended, and the process ends.
            loop.call_soon_threadsafe(tell, core, error)

    threading.Thread(target=run, name="hubsub-coordinator-start", daemon=True).start()
    return await done


def _not_started(code: str, message: str) -> StartError:
    what, _, hint = message.partition("\nhint: ")
    return STARTS.get(code, StartError)(value=what, hint=hint or None)


async def _check_reachable(host: str | None, port: int) -> None:
    """Logs a warning if this node cannot be reached at its advertised address. Members would admit it and
    never reach it: it would learn nothing, and its start would time out.

    Args:
        host: Advertised host; None: the listening address.
        port: 0: chosen by the system, not known yet.
    """
    if host is None or port == 0:
        return
    reason = "no answer in time"
    with suppress(TimeoutError):
        async with asyncio.timeout(REACHED_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError as error:
                    # Perhaps it does not listen yet. The resolver's error numbers are below 0.
                    number = error.errno or 0
                    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
                    await asyncio.sleep(REACHED_S / 30)
                else:
                    writer.close()
                    return
    log.warning(
        "this node does not reach itself where others are told that it is: they may not either",
        address=join_address(host, port),
        reason=reason,
        hint="`advertise` is the host that other nodes reach this one at",
    )


def _default_listen(link: str | None) -> str | None:
    """The coordinator's address if only the links' listener is configured: the same host, a separate port."""
    if link is None:
        return None
    host, port = split_address(link)
    return join_address(host, PORT_DEFAULT if port else 0)


def _with_port(address: str) -> str:
    has_port = ":" in address.rpartition("]")[2]
    return address if has_port else f"{address}:{PORT_DEFAULT}"


def own_host() -> str:
    """This machine's address on the route to other machines; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
