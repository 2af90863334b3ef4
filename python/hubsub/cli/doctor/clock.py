"""Clocks: whether a time service synchronizes this clock, and the clock offsets of other nodes.

HubSub neither orders records nor decides failovers by wall-clock time: leases run on monotonic clocks.
Records are stamped with it, so it affects SINCE, retention by age, and readers of the log.
"""

import ctypes
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hubsub.cli.doctor.finding import Finding

ERROR_MS_MAX = 1_000
"""Limit for the kernel's own error bound; a synchronized clock is far below."""
OFFSET_MS_MAX = 250
"""Limit for the offset between two nodes; a larger one is noticeable in the records."""

STA_UNSYNC = 0x0040


class KernelClock(NamedTuple):
    """The kernel's estimate of its clock error (adjtimex(2))."""

    is_kept: bool
    error_ms: float
    """Maximum error, as the kernel estimates it."""


class PeerClock(NamedTuple):
    """A node's clock, as another node measures it over their links."""

    node: str
    offset_ms: float
    """Its clock minus the other one's."""
    error_ms: float
    """Maximum error of the offset."""


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`; the rest is space for the kernel's other fields."""

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
    """The kernel's estimate; None where the system call is not available."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    timex = _Timex()  # Modes 0: nothing is set.
    if ask(ctypes.byref(timex)) < 0:
        return None
    return KernelClock(not timex.status & STA_UNSYNC, timex.maxerror / 1_000)


def clock(kernel: KernelClock | None) -> Iterator[Finding]:
    """Checks whether a time service synchronizes this machine's clock."""
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
    """Checks for nodes whose clocks certainly differ."""
    for peer in peers:
        sure_ms = abs(peer.offset_ms) - peer.error_ms
        name, found = f"clock of {peer.node}", f"{peer.offset_ms:+,.1f} ms, give or take {peer.error_ms:,.1f}"
        if sure_ms > OFFSET_MS_MAX:
            hint = "records are stamped so far apart, and SINCE means another time there; let a time service keep both"
            yield Finding(name, "bad", found, hint)
        else:
            yield Finding(name, "ok", found)
