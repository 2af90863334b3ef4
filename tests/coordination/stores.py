"""Real stores to test the coordinators against: the embedded one, etcd and ZooKeeper with three members each,
and one in memory.

Members are processes in directories of their own, on ports that were free; each is ended by its pid. Faults:
`pause` stops them as if the machine hung, `kill` ends them, `cut` is a proxy in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from coordination.proxy import Line, Proxy, Wires
from hubsub.coordination import Coordinator, open_url
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.testing import stores
from hubsub.testing.stores import MEMBERS as MEMBERS
from hubsub.testing.stores import Learner, unchecked

__all__ = ["MEMBERS", "STORES", "Embedded", "Etcd", "Members", "Memory", "Store", "ZooKeeper", "unchecked"]


class Store(ABC):
    """A store that coordinators connect to, with injected faults."""

    kind: str
    ttl_s = 1.0
    """The shortest lease that it grants, or a little more."""
    has_breaks = True
    """Whether a watch breaks with its connection; a watch of a local replica stalls instead."""

    @abstractmethod
    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        """A new connection: to all members, or only to `member`."""

    @abstractmethod
    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        """A new connection that can be cut."""

    @abstractmethod
    async def pause(self) -> None:
        """All members stop responding; connections stay open."""

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def crash(self) -> None:
        """All members are killed and restarted with the state on disk."""

    def stop(self) -> None:  # noqa: B027, for those that have something to stop
        """Ends the store for good."""


class MemoryLine(Line):
    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.coordinator = coordinator

    def cut(self) -> None:
        self.coordinator.cut = True

    async def mend(self) -> None:
        self.coordinator.cut = False


class Memory(Store):
    kind = "memory"

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}

    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        return MemoryCoordinator(self.stores.setdefault(prefix, MemoryStore()))

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        coordinator = MemoryCoordinator(self.stores.setdefault(prefix, MemoryStore()))
        return coordinator, MemoryLine(coordinator)

    async def pause(self) -> None:
        for store in self.stores.values():
            store.away = True

    async def resume(self) -> None:
        for store in self.stores.values():
            store.away = False

    async def crash(self) -> None:
        await self.pause()
        await self.resume()


class Members(stores.Members, Store):
    """Member processes with faults."""

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        proxy = await proxies.enter_async_context(Proxy(self.ports[0]))
        return await open_url(self.url([proxy.port], prefix, "1s")), proxy

    async def pause(self) -> None:
        for member in range(len(self.processes)):
            self.pause_one(member)

    async def resume(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    async def crash(self) -> None:
        for member in range(len(self.commands)):
            self.kill(member)
        await asyncio.gather(*map(self.restart, range(len(self.commands))))


class Etcd(Members, stores.Etcd):
    ttl_s = 2.0


class ZooKeeper(Members, stores.ZooKeeper):
    ttl_s = 1.5


class Embedded(Members, stores.Embedded):
    has_breaks = False

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        wires = [await proxies.enter_async_context(Proxy(port)) for port in self.ports]
        detours = {
            f"127.0.0.1:{port}": f"127.0.0.1:{wire.port}"
            for port, wire in zip(self.ports, wires, strict=True)
        }
        return await Learner.open(self.setup("1s", detours=detours), prefix), Wires(wires)


STORES: dict[str, Callable[[Path], Members]] = {"embedded": Embedded, "etcd": Etcd, "zookeeper": ZooKeeper}
