"""A node: the Rust core run inside an asyncio loop.

The node owns the core. A request takes a ticket, goes into a shard's mailbox
and becomes a future; the answers come back as events, drained in batches when
the core's descriptor is readable. Nothing here happens per message of a
client, only per request of the control plane.

Invariants: every ticket is answered, or forgotten at its time-out, so at most
`control_requests_max` futures wait; only the loop's thread touches a node.
"""

import asyncio
import fcntl
import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from hubsub import _native
from hubsub.config import RESERVED, Config, RoomClass, is_wildcard, split_address
from hubsub.errors import (
    BadRequestError,
    ConfigError,
    NodeFailedError,
    Problem,
    StartError,
    TimedOutError,
    TooBusyError,
    refusal,
)
from hubsub.names import redis_cluster_id

BUILD_PROFILE = _native.BUILD_PROFILE
CORE_VERSION = _native.__version__

# For hubsub.coordination.embedded.
CoordinatorCore = _native.Coordinator

# For a log that no node uses.
log_manifest = _native.log_manifest
log_verify = _native.log_verify
log_show = _native.log_show
log_repair = _native.log_repair

DRAIN_EVENTS_MAX = 1_024
"""Events handled before other work of the loop has its turn."""

STOP_MARGIN_MS = 5_000
"""How much longer than its grace a shard may take to stop."""

SLOW_STOP_S = 5.0
"""After this time, and each time that twice as much has passed, a stop says that it waits for the log's disk."""

ROOMS_ALL = 2**32
"""As many of the busiest rooms as the shards know, which is bounded."""

INCARNATION_MAX = 2**32 - 1

log = structlog.get_logger()


class Cluster(NamedTuple):
    """What a node's data directory has to know of the cluster."""

    id: str
    """Of the cluster; a directory is of one for ever."""
    adopts: bool = False
    """Whether hubs that the node numbered itself, when it was alone, are the cluster's: of the node that founds it."""


class BusyRoom(NamedTuple):
    """A room and what it does in a second, by a sketch that looks at some of its records."""

    name: bytes
    messages: float
    bytes_in: float
    """Of topic and payload."""
    bytes_out: float
    """The same for each subscriber that a record goes to."""


class Published(NamedTuple):
    """A record that was taken; epoch and seq are 0 where no room took it."""

    receivers: int
    epoch: int
    seq: int
    is_duplicate: bool = False
    """Its producer had sent it before: this is where it stands since."""


class Item(NamedTuple):
    """A record to publish."""

    topic: bytes
    payload: bytes
    headers: Mapping[str, str]
    publisher: str
    producer: tuple[int, int] | None = None
    """Who numbered it and that number, both from 1; see `hubsub.names.producer_id`."""


class Failed(NamedTuple):
    """A record of a batch that was refused."""

    code: str
    message: str


class PublishedRows(NamedTuple):
    """What came of the rows of a chunk."""

    again: int
    """How many were there already."""
    refused: list[tuple[int, Failed]]
    """By place in the chunk."""


class PeerEvent(NamedTuple):
    """What became of a peer: another node with which this one may have links."""

    kind: str
    """`up` (all its links stand), `suspected`, `heard` (again), `down` (a link ended), `refused`, `dead`."""
    node: str
    incarnation: int
    code: str | None
    """Of `down`: `stopping`, `goodbye`, `left`, `eof`, `silent`, `broken_rule`, `unregistered`; of that and `refused`
    also the code of a refusal (docs/protocol/link.md)."""
    text: str | None
    """Why, for a person."""


class HistoryRow(NamedTuple):
    """A record as history holds it."""

    epoch: int
    seq: int
    timestamp_us: int
    topic: bytes
    publisher: str
    payload: bytes
    headers: Mapping[str, str]


class ClusterNode(NamedTuple):
    """A node as Redis cluster clients are told of it."""

    name: str
    """By the names alone the slots are dealt."""
    id: str
    """Of `hubsub.names.redis_cluster_id`."""
    host: str
    """Empty: the one that the client came to."""
    port: int


class Node:
    """One node's data plane, seen from Python.

    Args:
        config: The resolved configuration.
        cluster: The cluster that numbers its hubs, which come by `open_hub`; None: it does so itself.

    Raises:
        ConfigError: the core refuses a value.
        StartError: the data directory cannot be used.
    """

    def __init__(self, config: Config, cluster: Cluster | None = None) -> None:
        self.config = config
        self.name = config.node
        self._lock_fd = -1
        self.incarnation = self._new_incarnation(config.data)
        try:
            self._core = _native.Core(core_config(config, self.incarnation, cluster))
        except ValueError as error:
            raise ConfigError([Problem("core", None, str(error))]) from None
        self._limits = dict(config.limits)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shards_running = 0
        self._stopped = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None
        self._started_at = time.monotonic()
        self.addresses: dict[str, str | None] = {}
        self.refused_requests = 0
        """Requests refused at `control_requests_max`."""
        self.on_peer: Callable[[PeerEvent], None] | None = None
        """Hears what becomes of peers, in order."""
        self.on_asked: Callable[[str, int, bytes], None] | None = None
        """Gets what a peer's control plane asks: its name, the number for `link_answer`, and the question."""

    # -- life --

    async def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards.

        Returns:
            Listener to its bound `HOST:PORT`, None if off.

        Raises:
            StartError: an address cannot be bound, or the log cannot be opened.
        """
        loop = asyncio.get_running_loop()
        try:
            self.addresses = self._core.start()
        except OSError as error:
            if not error.errno:
                raise StartError(*log_problem(error, self.config.data)) from None
            raise StartError(
                f"cannot listen ({error.strerror or error})",
                error.filename or self.config.redis,
                "another server may have this port; `:0` picks a free one",
            ) from None
        self._loop = loop
        self._failed = loop.create_future()
        self._shards_running = self.config.shards
        self._started_at = time.monotonic()
        loop.add_reader(self._core.wake_fd(), self._on_wake)
        own = self.redis_cluster_node("")
        if own is not None:
            self.redis_cluster_nodes([own])
        return self.addresses

    async def stop(self) -> None:
        """Stops accepting, lets output drain for `drain_ms`, closes; ends the log, so that the next start trusts it."""
        if self._loop is None:
            self._unlock()
            return
        grace_ms = self._limits["drain_ms"]
        self._core.stop(grace_ms)
        try:
            if self._shards_running:
                async with asyncio.timeout((grace_ms + STOP_MARGIN_MS) / 1_000):
                    await self._stopped.wait()
        except TimeoutError:
            log.error("shards did not stop in time", shards=self._shards_running)
        else:
            # What is safe in the journal goes into segments, and the log ends cleanly.
            await self._end_log()
            self._on_wake()
        self._loop.remove_reader(self._core.wake_fd())
        self._loop = None
        self._forget_all()
        self._unlock()

    async def _end_log(self) -> None:
        """Waits for the log, however long its disk takes: only what it has made safe is not lost."""
        ended = asyncio.create_task(asyncio.to_thread(self._core.join))
        wait_s, waited_s = SLOW_STOP_S, 0.0
        while not (await asyncio.wait({ended}, timeout=wait_s))[0]:
            waited_s += wait_s
            wait_s = waited_s
            log.warning("still waits for the disk of the log", data=self.config.data, waited_s=waited_s)
        await ended

    async def wait_failed(self) -> None:
        """Returns never; raises when a shard ended without being told to.

        Raises:
            NodeFailedError: the shard and its reason.
        """
        assert self._failed is not None, "start() makes it"
        await asyncio.shield(self._failed)

    @property
    def running(self) -> bool:
        """Whether all shards serve."""
        return self._loop is not None and self._shards_running == self.config.shards

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def shards(self) -> int:
        return self.config.shards

    def reload(self, limits: Mapping[str, int]) -> None:
        """Takes new limits over while running.

        Args:
            limits: All limits of the resolved configuration by name.
        """
        core = self.config.core_limits()
        self._core.reload({name: limits[name] for name in core})
        self._limits = dict(limits)

    def redis_cluster_node(self, cluster: str) -> ClusterNode | None:
        """This node as Redis cluster clients are told of it; None without a listener for them.

        Args:
            cluster: Id of the cluster; empty for a node alone.
        """
        address = self.addresses.get("redis_cluster")
        if address is None:
            return None
        host, port = split_address(address)
        reached = self.config.advertise or ("" if is_wildcard(address) else host)
        return ClusterNode(self.name, redis_cluster_id(cluster, self.name), reached, port)

    def redis_cluster_nodes(self, nodes: Sequence[ClusterNode]) -> None:
        """Deals the slots of Redis cluster clients to these nodes; each of them must get the same ones.

        Without this node among them it serves no slot and sends clients to the others.

        Raises:
            ValueError: two nodes have one name, an id is none, or there are more than 16,384 nodes.
        """
        self._core.redis_cluster_nodes(list(nodes))

    # -- requests --

    async def publish(self, items: Sequence[Item], *, as_node: bool = False) -> list[Published | Failed]:
        """Publishes records in order; one result each. Only the node itself uses names that begin with `$`.

        Waits without a time limit: a publish whose outcome is unknown must not be taken for a failed one.
        """
        answers = await self._ask(self._core.publish, list(items), as_node)
        return [Published(*a) if len(a) == 4 else Failed(*a) for a in answers]

    async def publish_rows(
        self, chunk: bytes, left: Sequence[int] | None, producer: int, first: int
    ) -> PublishedRows:
        """Publishes the rows of a chunk of `RowReader`, or those of `left`.

        Args:
            chunk: As `RowReader` gave it.
            left: Places in the chunk, rising; None for all.
            producer: Who numbers them, of `hubsub.names.producer_id`.
            first: Number of the chunk's first row; the others follow by their places.
        """
        again, refused = await self._ask(self._core.publish_rows, chunk, left, producer, first)
        return PublishedRows(again, [(row, Failed(code, message)) for row, code, message in refused])

    def row_reader(self, topic: bytes | None, publisher: str) -> _native.RowReader:
        """Reads one Arrow stream of rows.

        Args:
            topic: That of all rows, which then have no column for it.
            publisher: Of rows that name none.
        """
        return self._core.row_reader(topic, publisher)

    async def room(self, room: bytes) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = await self._ask_in_time(self._core.room, room)
        return answer

    async def rooms(self, match: bytes | None, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` rooms in order of name, behind `after`: those in memory and those in the log."""
        answer: list[dict[str, Any]] = await self._ask_in_time(self._core.rooms, match, after, limit)
        return answer

    async def room_create(self, room: bytes) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = await self._ask_in_time(self._core.room_create, room)
        return answer

    async def room_delete(self, room: bytes, *, as_node: bool = False) -> bool:
        """Whether it was there.

        Raises:
            RoomInUseError: it has subscribers.
        """
        return bool(await self._ask_in_time(self._core.room_delete, room, as_node))

    async def history(
        self,
        room: bytes,
        count: int,
        after: tuple[int, int] | None = None,
        topic: bytes | None = None,
        *,
        as_node: bool = False,
    ) -> tuple[bool, list[HistoryRow]]:
        """Whether `after` was known, and the rows, oldest first."""
        recovered, rows = await self._ask_in_time(self._core.history, room, count, after, topic, as_node)
        return recovered, [HistoryRow(*row) for row in rows]

    async def clients(self, sort: str, limit: int, client: int | None = None) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = await self._ask_in_time(self._core.clients, sort, limit, client)
        return answer

    async def client_kill(self, client: int, reason: str) -> bool:
        """Whether there was one."""
        return bool(await self._ask_in_time(self._core.client_kill, client, reason))

    async def busiest_rooms(self, limit: int, *, own: bool = False) -> list[BusyRoom]:
        """The busiest first; with `own` also the node's own rooms."""
        asked = limit if own else ROOMS_ALL
        rooms = [BusyRoom(*row) for row in await self._ask_in_time(self._core.busiest_rooms, asked)]
        return [room for room in rooms if own or not room.name.startswith(RESERVED.encode())][:limit]

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges now: `{"shards": [{name: int}, …], "node": {name: int}}`."""
        return self._core.metrics()

    def log(self) -> dict[str, Any] | None:
        """State, figures and hubs of the log, as `Core.log`; None where no class has one."""
        return self._core.log() if self.addresses else None

    async def open_hub(self, hub: int, room_class: str, index: int) -> dict[str, Any]:
        """Opens a hub of a class with a log while the node runs; one that was never here is made.

        The answer may take long where a big log is opened; others do not wait for it.

        Args:
            hub: Its id, from 1, in the whole cluster.
            room_class: Name of its class.
            index: Which of the class's hubs it is, from 0.

        Returns:
            What the hub tells of itself, a row of `log()["hubs"]`. One that is open already stays as it is.

        Raises:
            HubDiffersError: the id, or the class's index, is another hub's here; both are named.
            DiskFullError: nothing was made.
            QuarantinedError: it is damaged.
            HubClosedError: it is being closed.
            LogFailedError: the log takes nothing.
            BadRequestError: the node does not know the class, or keeps no log for it.
        """
        try:
            opened: dict[str, Any] = await self._ask(self._core.open_hub, hub, room_class, index)
        except ValueError as error:
            raise BadRequestError(str(error), value=room_class) from None
        return opened

    async def close_hub(self, hub: int) -> bool:
        """Closes a hub, which stays on the disk: what it took is safe there first. Whether it was open.

        Raises:
            HubClosedError: it is being closed.
            LogFailedError: it could not be made safe.
        """
        return bool(await self._ask(self._core.close_hub, hub))

    def log_archived(self, offsets: Mapping[int, int]) -> None:
        """Hubs are archived up to these offsets: retention need not wait for what is before them."""
        self._core.log_archived(dict(offsets))

    def kept(self, name: str) -> str | None:
        """What `keep` was given last, in this life or an earlier one."""
        file = Path(self.config.data or "", name)
        try:
            return file.read_text() if self.config.data else None
        except (OSError, UnicodeDecodeError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a file of the data directory cannot be read", file=str(file), reason=str(error))
            return None

    async def keep(self, name: str, text: str) -> None:
        """Keeps a small text in the data directory; not more than one at a time of a name."""
        assert self.config.data is not None, "there is a log"
        await asyncio.to_thread(_write_synced, Path(self.config.data, name), text)

    def log_hub_of(self, room: bytes) -> tuple[str, int | None]:
        """Name of a room's class, and the id of the hub that logs its records, if one does."""
        return self._core.log_hub_of(room)

    async def log_offset(self, hub: int, timestamp_us: int) -> int:
        """The first offset of a hub whose timestamp is that or later; the one behind all that is committed."""
        return int(await self._ask_in_time(self._core.log_offset, hub, timestamp_us))

    async def open_records(self, scan: Mapping[str, Any]) -> "Records":
        """Opens a stream of a hub's records.

        Args:
            scan: As `Core.log_open` takes it.

        Returns:
            The stream; what stands in the way of its first chunk was raised instead.

        Raises:
            OffsetsLostError, OffsetUnknownError, QuarantinedError, TooManyStreamsError, LogFailedError.
            BadRequestError: a pattern cannot be read.
        """
        try:
            records = Records(self, await self._ask(self._core.log_open, scan))
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        await records.begin()
        return records

    async def next_records(self, number: int) -> bytes | None:
        """The next chunk of a stream; None behind the last."""
        chunk: bytes | None = await self._ask(self._core.log_next, number)
        return chunk

    def close_records(self, number: int) -> None:
        """Ends a stream, if it is there."""
        if self._loop is not None:
            self._core.log_close(number)

    def room_of(self, topic: bytes) -> tuple[bytes, str]:
        """Room of a topic and the name of its class."""
        return room_of(self.config, topic)

    # -- links --

    def link_begin(self, cluster: str, incarnation: int) -> None:
        """Says who this node is in its cluster: from now on it accepts and dials peers. The secret is that of the
        configuration.

        Args:
            cluster: Id, at most 64 bytes.
            incarnation: As it was issued when the node registered.

        Raises:
            StartError: there is no listener for links.
        """
        secret = self.config.cluster_secret
        if self.config.link is None or secret is None:
            hint = "`link` and `cluster_secret` in the configuration, on all nodes of the cluster"
            raise StartError("this node has no listener for links", hint=hint)
        self._core.link_begin(cluster, self.name, incarnation, secret.reveal().encode())

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        """Sets who may have links with this node; the same again changes nothing.

        Args:
            peers: All that are registered, as `(name, incarnation, addresses, shards)`; addresses are `IP:PORT`, tried
                in turn. This node itself is passed over.
        """
        self._core.link_roster([(name, number, list(to), shards) for name, number, to, shards in peers])

    def link_peers(self) -> list[dict[str, Any]]:
        """Peers and their links now, as `Core.link_peers`."""
        return self._core.link_peers() if self.addresses else []

    def link_status(self, classes: int) -> None:
        """What peers are told of this node: the version of its classes; its leads say the rest."""
        self._core.link_status(classes)

    async def link_ask(self, node: str, body: bytes) -> bytes:
        """Asks a peer's control plane.

        Raises:
            NotLinkedError: there is no link to it now.
            LinkFullError: too much waits for it.
            LinkLostError: the link ended; it may have been done.
            TimedOutError: likewise, after `request_timeout_ms`.
        """
        answer: bytes = await self._ask_in_time(self._core.link_ask, node, body)
        return answer

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        """Answers what `on_asked` was given; who asks knows by its time when the link has ended since."""
        self._core.link_answer(node, number, body)

    # -- tickets and events --

    async def _ask_in_time(self, call: Callable[..., None], *args: Any) -> Any:
        try:
            # Not `wait_for`: that of Python 3.11 forgets a cancellation that comes with the answer.
            async with asyncio.timeout(self._limits["request_timeout_ms"] / 1_000):
                return await self._ask(call, *args)
        except TimeoutError:
            raise TimedOutError(hint="limits.request_timeout_ms is the time it had") from None

    async def _ask(self, call: Callable[..., None], *args: Any) -> Any:
        if self._loop is None:
            raise refusal("stopping", "server is stopping")
        if len(self._waiting) >= self._limits["control_requests_max"]:
            self.refused_requests += 1
            raise TooBusyError(hint="limits.control_requests_max is reached")
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = future
        try:
            call(ticket, *args)
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def _on_wake(self) -> None:
        for event in self._core.drain(DRAIN_EVENTS_MAX):
            match event:
                case ("answer", ticket, value):
                    self._settle(ticket, value, None)
                case ("refused", ticket, code, message, *details):
                    self._settle(ticket, None, refusal(code, message, *details))
                case ("log", level, message, fields):
                    log.log(LEVELS.get(level, LEVELS["error"]), message, **fields)
                case ("link", kind, peer, incarnation, code, text):
                    if self.on_peer is not None:
                        self.on_peer(PeerEvent(kind, peer, incarnation, code, text))
                case ("asked", peer, number, body):
                    if self.on_asked is not None:
                        self.on_asked(peer, number, body)
                    else:
                        log.warning("nobody here answers a peer", node=peer)
                case ("stopped", shard, reason):
                    self._on_stopped(shard, reason)

    def _settle(self, ticket: int, value: Any, error: Exception | None) -> None:
        future = self._waiting.get(ticket)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def _on_stopped(self, shard: int, reason: str | None) -> None:
        self._shards_running -= 1
        if reason is not None:
            log.error("shard failed", shard=shard, reason=reason)
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(NodeFailedError(value=f"shard {shard}, {reason}"))
        if self._shards_running == 0:
            self._stopped.set()
            self._forget_all()

    def _forget_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(refusal("stopping", "server is stopping"))
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()

    def _unlock(self) -> None:
        """Lets another node have the data directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _new_incarnation(self, data: str | None) -> int:
        """A number above that of every earlier life of this node: half of each room epoch."""
        now = int(time.time())
        if data is None:
            return min(now, INCARNATION_MAX)
        directory = Path(data)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file = directory / "incarnation"
            stored = int(file.read_text()) if file.exists() else 0
            incarnation = max(now, stored + 1)
            _write_synced(file, f"{incarnation}\n")
        except BlockingIOError:
            raise StartError(
                "another node uses this data directory", data, "give each node its own --data"
            ) from None
        except OSError as error:
            raise StartError(f"the data directory cannot be used ({error.strerror})", data) from None
        except ValueError:
            raise StartError("the incarnation file is damaged", file, "it holds one whole number") from None
        if incarnation > INCARNATION_MAX:
            raise StartError("the incarnation does not fit 32 bits", incarnation, f"mend {file}")
        return incarnation


def log_problem(error: OSError, directory: str | Path | None) -> tuple[str, str | Path | None, str | None]:
    """What the core says of a log: what happened, in which directory, and what to do about it.

    Args:
        error: As the core raised it.
        directory: As the operator named it.
    """
    what, _, hint = (error.strerror or str(error)).partition("; hint: ")
    if not hint and what.startswith("manifest.json is damaged"):
        hint = f"stop the node, then `hubsub log repair {directory}` says what can be kept"
    is_told = directory is None or str(directory) in what
    return what, None if is_told else directory, hint or None


class Records:
    """An Arrow IPC stream in chunks: an async iterator of bytes, each encoded when it is wanted.

    It ends where the stream does. An error from it means that the rest is missing. Whoever
    leaves it early closes it, and so do errors and cancellation of `anext`.
    """

    def __init__(self, node: Node, number: int) -> None:
        self._node = node
        self._number: int | None = number
        self._first: bytes | None = None

    async def begin(self) -> None:
        """Waits for the first chunk, which `anext` then gives."""
        self._first = await self._next()

    def __aiter__(self) -> "Records":
        return self

    async def __anext__(self) -> bytes:
        chunk, self._first = self._first, None
        if chunk is None:
            chunk = await self._next()
        if chunk is None:
            self.close()
            raise StopAsyncIteration
        return chunk

    def close(self) -> None:
        """Lets go of what the node holds for it."""
        number, self._number = self._number, None
        self._first = None
        if number is not None:
            self._node.close_records(number)

    async def _next(self) -> bytes | None:
        if self._number is None:
            return None
        try:
            chunk: bytes | None = await self._node.next_records(self._number)
        except BaseException:
            self.close()
            raise
        return chunk


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def core_config(config: Config, incarnation: int, cluster: Cluster | None = None) -> dict[str, Any]:
    """The configuration as the core takes it."""
    return {
        "node": config.node,
        "incarnation": incarnation,
        "shards": config.shards,
        "redis": config.redis,
        "redis_cluster": config.redis_cluster,
        "link": config.link,
        "advertise": config.advertise,
        "hash_tags": config.hash_tags,
        "limits": config.core_limits(),
        "log": _log(config, cluster),
        "classes": [core_class(cls) for cls in config.all_classes],
    }


def _log(config: Config, cluster: Cluster | None) -> tuple[str, int, tuple[str, bool] | None] | None:
    """Directory of the log, the identity of one that is made now, and who numbers its hubs; None without a
    data directory."""
    if config.data is None:
        return None
    return str(Path(config.data) / "log"), secrets.randbits(64), cluster


def core_class(cls: RoomClass) -> dict[str, Any]:
    history = cls.history
    return {
        "name": cls.name,
        "match": list(cls.match),
        "room": None if cls.room == "topic" else cls.room,
        "device": cls.device,
        "durability": cls.durability,
        "history": None
        if history is None
        else {
            "messages": history.messages,
            "bytes": history.bytes,
            "age_ms": history.age_ms,
            "archive_wait": history.archive_wait,
        },
        "on_slow": cls.on_slow,
        "on_gap": cls.on_gap,
        "payload_bytes_max": cls.payload_bytes_max,
        "idle_ms": cls.idle_ms,
        "commit_delay_ms": cls.commit_delay_ms,
    }


def room_of(config: Config, topic: bytes) -> tuple[bytes, str]:
    """Room of a topic and the name of its class, as the data plane resolves it."""
    return _native.room_of([core_class(cls) for cls in config.all_classes], config.hash_tags, topic)


def _write_synced(file: Path, text: str) -> None:
    """Replaces a file so that after a power loss it holds the old or the new text."""
    new = file.with_suffix(".new")
    with open(new, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
