"""Clocks: does a time service keep this one, and how far off are those of other nodes.

Time orders nothing in HubSub and decides no failover: leases run on monotonic clocks. It is what records are
stamped with, so what SINCE, retention by age and whoever reads the log see.
"""

import ctypes
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hubsub.cli.doctor.finding import Finding

ERROR_MS_MAX = 1_000
"""The kernel's own bound of its error; a clock that is kept is far below."""
OFFSET_MS_MAX = 250
"""Between two nodes: more is seen by who reads records of both."""

STA_UNSYNC = 0x0040


class KernelClock(NamedTuple):
    """The kernel's opinion of its clock (adjtimex(2))."""

    is_kept: bool
    error_ms: float
    """At most so much, as the kernel believes."""


class PeerClock(NamedTuple):
    """A node's clock, as another node has it by their links."""

    node: str
    offset_ms: float
    """Its clock minus the other one's."""
    error_ms: float
    """At most so much the offset is wrong by."""


class _Timex(ctypes.Structure):
    """`struct timex`, its beginning; the rest is room for what the kernel writes."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    ]


def kernel_clock() -> KernelClock | None:
    """What the kernel says; None where it is not asked so."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    timex = _Timex()  # Modes 0: nothing is set.
    if ask(ctypes.byref(timex)) < 0:
        return None
    return KernelClock(not timex.status & STA_UNSYNC, timex.maxerror / 1_000)


def clock(kernel: KernelClock | None) -> Iterator[Finding]:
    """Whether this machine's clock is kept by a time service."""
    if kernel is None:
        return
    hint = "run chrony or systemd-timesyncd on the machine; in a virtual machine its host may keep the clock instead"
    if not kernel.is_kept:
        yield Finding("clock", "note", "no time service keeps it, as far as the kernel knows", hint)
    elif kernel.error_ms > ERROR_MS_MAX:
        yield Finding("clock", "note", f"kept, and may be off by {kernel.error_ms:,.0f} ms", hint)
    else:
        yield Finding("clock", "ok", f"kept, at most {kernel.error_ms:,.0f} ms off")


def peer_clocks(peers: Iterable[PeerClock]) -> Iterator[Finding]:
    """Nodes whose clocks surely differ."""
    for peer in peers:
        sure_ms = abs(peer.offset_ms) - peer.error_ms
        name, found = f"clock of {peer.node}", f"{peer.offset_ms:+,.1f} ms, give or take {peer.error_ms:,.1f}"
        if sure_ms > OFFSET_MS_MAX:
            hint = "records are stamped so far apart, and SINCE means another time there; let a time service keep both"
            yield Finding(name, "bad", found, hint)
        else:
            yield Finding(name, "ok", found)
