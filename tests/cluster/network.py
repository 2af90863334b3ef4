"""A network for a test: a namespace per node, and a router namespace between them that drops packets on
demand.

```
   ns a             ns (router)            ns b
   10.77.1.2 ══ 10.77.1.1  10.77.2.1 ══ 10.77.2.2       and so on; each namespace has a loopback of its own
```

Nodes listen for each other on their addresses, and for clients on loopback: clients stay connected while
nodes are cut off. The router cuts a direction by a rule that drops its packets, so no side is notified:
connections stay open and silent. Nothing has a name outside this process; the namespaces end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

CLONE_NEWNET = 0x4000_0000
OWN = "/proc/thread-self/ns/net"

REASON = "needs network namespaces"
"""Why a test is skipped if this process may not create namespaces (CAP_SYS_ADMIN, CAP_NET_ADMIN)."""

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace; it exists while it is open, or a process is in it."""

    def __init__(self) -> None:
        home = os.open(OWN, os.O_RDONLY)
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            self.file = os.open(OWN, os.O_RDONLY)
            _check(_libc.setns(home, CLONE_NEWNET))
        finally:
            os.close(home)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Within the context, sockets created by this thread belong to the namespace, and so do processes
        that it starts."""
        home = os.open(OWN, os.O_RDONLY)
        _check(_libc.setns(self.file, CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNET))
            os.close(home)

    def ip(self, *lines: str) -> None:
        """Runs lines with `ip -batch`.

        Raises:
            PermissionError: this process may not.
            OSError: another reason.
        """
        with self.entered():
            run = subprocess.run(
                ["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True
            )
        if run.returncode:
            kind = PermissionError if "not permitted" in run.stderr else OSError
            raise kind(f"ip: {run.stderr.strip()}")

    def close(self) -> None:
        os.close(self.file)


def _check(result: int) -> None:
    # `OSError` maps EPERM to `PermissionError`.
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Network:
    """Namespaces by name, each with an address that all others reach.

    Raises:
        PermissionError: this process may not.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.addresses = {name: f"10.77.{number}.2" for number, name in enumerate(names, 1)}
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._router = self._open(stack)
            self.namespaces = {name: self._open(stack) for name in names}
            with self._router.entered():
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            for name, namespace in self.namespaces.items():
                address = self.addresses[name]
                gate = address[:-1] + "1"
                self._router.ip(
                    f"link add dev to-{name} type veth peer name eth0 netns /proc/{os.getpid()}/fd/{namespace.file}",
                    f"addr add {gate}/30 dev to-{name}",
                    f"link set dev to-{name} up",
                )
                namespace.ip(
                    "link set dev lo up",
                    f"addr add {address}/30 dev eth0",
                    "link set dev eth0 up",
                    f"route add default via {gate}",
                )
            self._stack = stack.pop_all()
        self._cut: set[str] = set()
        """The active drop rules."""

    @staticmethod
    def _open(stack: contextlib.ExitStack) -> Namespace:
        namespace = Namespace()
        stack.callback(namespace.close)
        return namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def within(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Context in the namespace of a node; see `Namespace.entered`."""
        return self.namespaces[name].entered()

    def cut(self, ways: Iterable[tuple[str, str]], more: str = "") -> None:
        """Drops packets in these directions, not in the opposite ones, until `mend`.

        Args:
            ways: Pairs of source and target node.
            more: Further conditions, in the syntax of `ip rule`: `ipproto tcp dport 3224`; default: none.
        """
        rules = {
            f"from {self.addresses[one]} to {self.addresses[other]} {more} blackhole" for one, other in ways
        }
        self._router.ip(*(f"rule add {rule}" for rule in sorted(rules - self._cut)))
        self._cut |= rules

    def isolate(self, *names: str) -> None:
        """Cuts these nodes off from all others, but not from each other."""
        self.cut(way for way in permutations(self.names, 2) if (way[0] in names) != (way[1] in names))

    def mend(self) -> None:
        """Removes all cuts, so that all nodes reach each other."""
        self._router.ip(*(f"rule del {rule}" for rule in sorted(self._cut)))
        self._cut.clear()


def network_or_skip(names: Sequence[str]) -> Network:
    """Creates a network, or skips the test if the machine does not allow it."""
    try:
        return Network(names)
    except PermissionError as error:
        pytest.skip(f"{REASON} ({error})")
