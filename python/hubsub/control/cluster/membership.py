"""Cluster membership of a node: its incarnation, its record, and the lease of both the record and a controller term.
The protocol is in docs/protocol/control-plane.md.

`prepare` checks whether this process may be a node of the cluster, and issues its incarnation, which the data
plane needs before it opens anything. `Membership` registers the process once its addresses are known, and
keeps it registered.

Invariants: an incarnation is issued once, by a commit; it is above the last one issued, above the clock in
seconds, and above the one in the data directory. A name is taken only while it is free, or held by this
process's predecessor.
"""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from msgspec import structs

from hubsub.config import Config
from hubsub.control.cluster import bootstrap, classes
from hubsub.control.cluster.identity import Identity, StoredIdentity
from hubsub.control.cluster.records import (
    CLASSES,
    CLUSTER,
    INCARNATION,
    NODES,
    ClassRecord,
    ClusterRecord,
    IncarnationRecord,
    NodeRecord,
    format_of,
    node_key,
    parse,
)
from hubsub.coordination import Coordinator, Entry, Lease, Put
from hubsub.coordination.tasks import end
from hubsub.errors import (
    ClusterDiffersError,
    CoordinatorError,
    CoordinatorUnknownError,
    DuplicateNodeError,
    ExpectationError,
    LeaseLostError,
    OtherClusterError,
)

LEASE_S: Final = 3.0
"""Duration of the lease of a node and a controller term, seconds. Links usually detect a dead process
earlier; this is for a process that hangs or is cut off. Three renewals per lease are one commit per second
and node."""

HELD_S: Final = 2 * LEASE_S + 1
"""How long to wait for a name that is held: a process that just died holds it until its lease ends."""

RETRY_S: Final = 0.25
RETRY_S_MAX: Final = 5.0
"""Delay between attempts while the coordinator is away, doubled each time up to `RETRY_S_MAX`."""

TRIES_MAX: Final = 50
"""Attempts of a commit that conflicts or has an unknown outcome."""

CLASSES_COMMIT: Final = 40
"""Classes per commit: each is an expectation and a write of up to some kilobytes."""

log = structlog.get_logger("hubsub.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Identity of a process in the cluster, before it registers."""

    cluster: str
    incarnation: int
    predecessor: int | None
    """Incarnation of the previous process of this node, which has ended; None: not known."""
    classes: Mapping[str, ClassRecord]
    warnings: tuple[str, ...]
    """Differences of its configuration that are merely out of date."""
    founded: bool
    """Whether this node founded the cluster: then the cluster uses the hub numbers of its data directory."""
    identity: Identity
    """Lock of the data directory; closed with the membership."""


async def prepare(
    config: Config, coordinator: Coordinator, *, wall: Callable[[], float] = time.time
) -> Prepared:
    """Checks whether this process may be a node, founds the cluster if there is none, and issues an incarnation.

    Args:
        config: Of the node.
        coordinator: The cluster's.
        wall: The clock, seconds since 1970.

    Returns:
        The values for `Membership`, including the data directory's lock.

    Raises:
        OtherClusterError: the data directory belongs to another cluster.
        ClusterDiffersError: settings that all nodes must share differ.
        DuplicateNodeError: another process has the name, and keeps it.
        DataDirectoryError: the data directory cannot be used.
        CoordinatorError: the coordinator failed; nothing stays half done.
    """
    identity = Identity(config.data)
    try:
        if identity.stored is not None and identity.stored.node != config.node:
            raise DuplicateNodeError(
                "the data directory is of another node",
                f"{identity.stored.node}, not {config.node}",
                "a node keeps its name: start it with the former one, or with a data directory of its own",
            )
        predecessor = None if identity.stored is None else identity.stored.incarnation
        await _wait_for_name(coordinator, config.node, predecessor)
        for _ in range(TRIES_MAX):
            try:
                return await _prepared(config, coordinator, identity, predecessor, wall)
            except (ExpectationError, CoordinatorUnknownError) as error:
                log.info("joining the cluster begins again", reason=error.message)
                await asyncio.sleep(RETRY_S)
        raise CoordinatorUnknownError()
    except BaseException:
        identity.close()
        raise


class Membership:
    """The registration of this process.

    Args:
        coordinator: Store of the registration.
        prepared: From `prepare`.
        name: Of the node.
        record: Record to register; incarnation, process and time are filled in.
        wall: The clock, seconds since 1970.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        prepared: Prepared,
        name: str,
        record: NodeRecord,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.incarnation = prepared.incarnation
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the process has to stop: with `DuplicateNodeError` if another process is the node now,
        else with the error of a failed part of the control plane."""
        self.reregistrations = 0
        """Number of times that it registered again."""
        self._coordinator = coordinator
        self._prepared = prepared
        self._record = structs.replace(
            record,
            incarnation=prepared.incarnation,
            process=f"{socket.gethostname()}:{os.getpid()}",
            since_ms=int(wall() * 1_000),
        )
        self._lease: Lease | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    @property
    def lease(self) -> Lease | None:
        """Lease of the record, and of a controller term; None: none is held."""
        return self._lease if self._lease is not None and self._lease.held else None

    @property
    def is_draining(self) -> bool:
        return self._record.is_draining

    async def register(self) -> None:
        """Registers the node under its name.

        Raises:
            DuplicateNodeError: another process has it.
            CoordinatorError: it cannot be reached.
        """
        lease = await self._coordinator.lease(LEASE_S)
        try:
            self._lease = lease
            await self._write()
        except BaseException:
            self._lease = None
            await lease.release()
            raise
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
            self._keeper.add_done_callback(self.task_ended)

    async def drain(self, is_draining: bool = True) -> None:
        """Sets or clears the draining state in the node's record.

        Raises:
            CoordinatorError: it was not written, or the outcome is unknown.
        """
        self._record = structs.replace(self._record, is_draining=is_draining)
        if self.lease is not None:
            await self._write()

    async def leave(self) -> None:
        """Releases the name and a controller term, at once if the coordinator can be reached."""
        await end(self._keeper)
        if self._lease is not None:
            await self._lease.release()
        self._prepared.identity.close()

    def task_ended(self, task: "asyncio.Task[None]") -> None:
        """Called when a required task ended; an error means that the process has to stop."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a part of the control plane failed", node=self.name, exc_info=error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # Suppresses asyncio's warning if nothing awaits it.

    async def _keep(self) -> None:
        while True:
            assert self._lease is not None
            await self._lease.lost.wait()
            log.warning("the coordinator let this node go; registering again", node=self.name)
            self.reregistrations += 1
            pause = RETRY_S
            while True:
                try:
                    await self.register()
                    break
                except DuplicateNodeError as error:
                    self._fail(error)
                    return
                except CoordinatorError as error:
                    log.info("registering again has to wait", reason=error.message)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RETRY_S_MAX)

    async def _write(self) -> None:
        """Writes the current record, whatever was written before."""
        key = node_key(self.name)
        async with self._writing:
            for _ in range(TRIES_MAX):
                if self._lease is None or not self._lease.held:
                    raise LeaseLostError()
                held = await self._coordinator.get(key)
                if held is not None and not self._is_ours(held):
                    raise _duplicate(self.name, held)
                revision = 0 if held is None else held.revision
                try:
                    await self._coordinator.commit(
                        {key: revision}, [Put(key, format_of(self._record), self._lease)]
                    )
                    return
                except (ExpectationError, CoordinatorUnknownError):
                    await asyncio.sleep(RETRY_S)
            raise CoordinatorUnknownError()

    def _is_ours(self, held: Entry) -> bool:
        incarnation = parse(NodeRecord, held.key, held.value).incarnation
        return incarnation in (self.incarnation, self._prepared.predecessor)


async def _wait_for_name(coordinator: Coordinator, name: str, predecessor: int | None) -> None:
    """Waits until no other process has the name, at most as long as a dead one may hold it."""
    held: Entry | None = None
    has_logged = False
    for _ in range(round(HELD_S / RETRY_S) + 1):
        held = await coordinator.get(node_key(name))
        if held is None or parse(NodeRecord, held.key, held.value).incarnation == predecessor:
            return
        if not has_logged:
            log.info("the name is held, perhaps by a process that has ended: waiting", node=name)
            has_logged = True
        await asyncio.sleep(RETRY_S)
    assert held is not None
    raise _duplicate(name, held)


def _duplicate(name: str, held: Entry) -> DuplicateNodeError:
    record = parse(NodeRecord, held.key, held.value)
    since = datetime.fromtimestamp(record.since_ms / 1e3, UTC).isoformat(timespec="seconds")
    where = ", ".join(f"{protocol} {address}" for protocol, address in sorted(record.addresses.items()))
    return DuplicateNodeError(
        value=f"{name} is process {record.process or '?'} since {since}, incarnation {record.incarnation}"
        + (f", at {where}" if where else ""),
        hint=f"give this one another --node, or end that one; when it has died its name is free {LEASE_S:g} s later",
    )


async def _prepared(
    config: Config,
    coordinator: Coordinator,
    identity: Identity,
    predecessor: int | None,
    wall: Callable[[], float],
) -> Prepared:
    stored, settings = identity.stored, classes.settings_of(config)
    found = await coordinator.get(CLUSTER)
    there = await _classes(coordinator)
    if found is not None:
        cluster = parse(ClusterRecord, CLUSTER, found.value)
    else:
        founder = bootstrap.founder_of(config)
        cluster = ClusterRecord(id=uuid.uuid4().hex, settings=settings, founder=founder)
    if stored is not None and (found is None or stored.cluster != cluster.id):
        other = cluster.id if found is not None else "none yet"
        raise OtherClusterError(value=f"{stored.cluster}; the coordinator's is {other}")
    if found is None:
        bootstrap.check_unowned(config)
    is_changed = found is None
    if cluster.settings != settings and not (await coordinator.page(NODES, limit=1)).entries:
        # No node is registered that it could differ from.
        cluster, is_changed = structs.replace(cluster, settings=settings), True
    if found is None:
        bootstrap.check_unfinished(there, cluster.founder)
        seeds = bootstrap.with_founder_hubs(classes.seeds(config), cluster.founder)
    else:
        seeds = classes.own_seeds(config)
    missing = {name: record for name, record in seeds.items() if name not in there}
    bad, old = classes.differences(config, cluster, {**missing, **there})
    if bad:
        raise ClusterDiffersError(bad)
    names = sorted(missing)
    for at in range(0, len(names), CLASSES_COMMIT):
        part = [classes.class_key(name) for name in names[at : at + CLASSES_COMMIT]]
        await coordinator.commit(
            dict.fromkeys(part, 0), [Put(key, format_of(missing[key.partition("/")[2]])) for key in part]
        )
    issued = await coordinator.get(INCARNATION)
    last = 0 if issued is None else parse(IncarnationRecord, INCARNATION, issued.value).last
    incarnation = max(last + 1, int(wall()) + 1, (predecessor or 0) + 1)
    writes = [Put(INCARNATION, format_of(IncarnationRecord(last=incarnation)))]
    if is_changed:
        writes.append(Put(CLUSTER, format_of(cluster)))
    await coordinator.commit(
        {
            CLUSTER: 0 if found is None else found.revision,
            INCARNATION: 0 if issued is None else issued.revision,
        },
        writes,
    )
    founded = (
        found is None or (stored is not None and stored.founded) or bootstrap.is_founder(config, cluster)
    )
    identity.keep(
        StoredIdentity(cluster=cluster.id, node=config.node, incarnation=incarnation, founded=founded)
    )
    for words in old:
        log.warning("the configuration is older than the cluster's", differs=words)
    return Prepared(
        cluster=cluster.id,
        incarnation=incarnation,
        predecessor=predecessor,
        classes=await _classes(coordinator),
        warnings=tuple(old),
        founded=founded,
        identity=identity,
    )


async def _classes(coordinator: Coordinator) -> dict[str, ClassRecord]:
    entries = await coordinator.all(CLASSES)
    return {entry.key.partition("/")[2]: parse(ClassRecord, entry.key, entry.value) for entry in entries}
