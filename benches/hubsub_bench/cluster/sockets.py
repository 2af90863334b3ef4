"""Bytes that the TCP connections of a process have carried, as Linux counts them (`sock_diag`, RFC 793 both ways).

Links and clients of every server are thus counted in one way, and not by the server itself. A closed
connection is not counted any more: sample while the relevant ones are open.

```text
out   nlmsghdr, inet_diag_req_v2: family, protocol, which extensions, states, an empty socket id
in    nlmsghdr, inet_diag_msg: …, ports (big endian) at 4, inode at 68; attributes: INET_DIAG_INFO has
      tcp_info, with bytes_received at 128 and bytes_sent at 200 (u64)
```
"""

import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hubsub_bench import BenchError

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
INET_DIAG_INFO = 2
ALL_STATES = 0xFFFF_FFFF
HEADER = struct.Struct("=IHHII")
MESSAGE_BYTES = 72
INFO_BYTES_MIN = 208
"""A kernel whose tcp_info ends earlier (before 4.19) does not count sent bytes."""


@dataclass(frozen=True, slots=True)
class Bytes:
    received: int = 0
    sent: int = 0

    @property
    def both(self) -> int:
        return self.received + self.sent

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.received + other.received, self.sent + other.sent)

    def __sub__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.received - other.received, self.sent - other.sent)


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes carried by one process's connections."""

    links: Bytes
    """Bytes on connections between nodes."""
    clients: Bytes
    """Bytes on all other connections."""


def carried(pid: int, node_ports: Collection[int]) -> Carried:
    """Samples the open connections of a process.

    Args:
        pid: The process.
        node_ports: Ports on which nodes listen for each other; a connection with one at either end is a link.

    Raises:
        BenchError: the system does not count, or the process is gone.
    """
    own = _inodes(pid)
    links, clients = Bytes(), Bytes()
    for ports, inode, count in _connections():
        if inode not in own:
            continue
        if any(port in node_ports for port in ports):
            links += count
        else:
            clients += count
    return Carried(links, clients)


def _inodes(pid: int) -> set[int]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = str(entry.readlink())
            except OSError:
                continue  # It was closed meanwhile.
            if name.startswith("socket:["):
                found.add(int(name[8:-1]))
    except OSError as error:
        raise BenchError("the connections of a process cannot be seen", pid) from error
    return found


def _connections() -> Iterator[tuple[tuple[int, int], int, Bytes]]:
    """Ports of both ends, inode and count of each TCP connection of the machine."""
    try:
        family = socket.AF_NETLINK
    except AttributeError:
        raise BenchError("bytes of connections are counted on Linux only") from None
    with socket.socket(family, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(10.0)
        for wanted in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack(
                "=BBBBI", wanted, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, ALL_STATES
            )
            request += bytes(48)
            flags = NLM_F_REQUEST | NLM_F_DUMP
            netlink.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
            is_done = False
            while not is_done:
                data = netlink.recv(1 << 20)
                at = 0
                while at < len(data):
                    size, kind, *_ = HEADER.unpack_from(data, at)
                    if kind == NLMSG_ERROR:
                        raise BenchError("the system does not tell what connections carry")
                    if kind == NLMSG_DONE:
                        is_done = True
                        break
                    yield from _row(data[at + HEADER.size : at + size])
                    at += (size + 3) & ~3


def _row(message: bytes) -> Iterator[tuple[tuple[int, int], int, Bytes]]:
    ports: tuple[int, int] = struct.unpack_from(">HH", message, 4)
    (inode,) = struct.unpack_from("=I", message, 68)
    at = MESSAGE_BYTES
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        info = message[at + 4 : at + size]
        if kind == INET_DIAG_INFO and len(info) >= INFO_BYTES_MIN:
            (received,), (sent,) = struct.unpack_from("=Q", info, 128), struct.unpack_from("=Q", info, 200)
            yield ports, inode, Bytes(received, sent)
        at += max(4, (size + 3) & ~3)
