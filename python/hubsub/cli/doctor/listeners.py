"""Checks of the configured addresses: whether each is free or who uses it, and whether others can reach it."""

import errno
import ipaddress
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hubsub.cli.doctor.finding import Finding
from hubsub.config import LISTENERS, Config, is_loopback, is_wildcard, split_address

REACH_S = 2.0
"""Connection timeout, in seconds."""

LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


def listeners(config: Config) -> Iterator[Finding]:
    """Checks each listener that has a fixed port."""
    for name, address in addresses(config).items():
        if split_address(address)[1]:
            yield _listener(name, address)


def addresses(config: Config) -> dict[str, str]:
    """Listener to its address, for the enabled ones."""
    return {name: address for name in LISTENERS if (address := getattr(config, name)) is not None}


def _listener(name: str, address: str) -> Finding:
    check, (host, port) = f"{name} listener", split_address(address)
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        return Finding(check, "bad", f"{address}: {error.strerror}", "a name or an address of this machine")
    try:
        with socket.socket(info[0], info[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(info[4])
    except OSError as error:
        return _refused(check, address, error)
    return Finding(check, "ok", f"{address} is free")


def _refused(check: str, address: str, error: OSError) -> Finding:
    found = f"{address}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        who = holder(split_address(address)[1])
        if who is None:
            return Finding(check, "note", found, "a node runs there, or another user's program")
        # Its arguments may be secret.
        found = f"{address} is held by pid {who.pid}: {who.words[0][:120] if who.words else '?'}"
        if who.is_node:
            return Finding(check, "note", found, "a node runs there")
        return Finding(check, "bad", found, "end it, or choose another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return Finding(
            check, "bad", found, "it is no address of this machine; bind one, and --advertise the other"
        )
    hint = "ports below 1024 are for root: another port, or CAP_NET_BIND_SERVICE"
    return Finding(check, "bad", found, hint if error.errno == errno.EACCES else "choose another address")


class Holder(NamedTuple):
    pid: int
    words: list[str]
    """Arguments of its command line."""

    @property
    def is_node(self) -> bool:
        return any(word == "hubsub.testing" or Path(word).name == "hubsub" for word in self.words)


def holder(port: int, proc: Path = Path("/proc")) -> Holder | None:
    """The process that listens on a port; None if that cannot be determined."""
    sockets = {
        f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _inodes(proc / "net" / table, port)
    }
    if not sockets:
        return None
    for process in proc.glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return Holder(int(process.name), [word for word in words if word])
        except OSError:
            continue  # It has ended, or belongs to another user.
    return None


def _inodes(table: Path, port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on a port (proc_net(5))."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return
    for row in rows:
        if len(row) > 9 and row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port:
            yield row[9]


# -- advertised addresses --


def advertised(config: Config) -> Iterator[Finding]:
    """Checks that the advertised addresses lead to this machine."""
    bound = addresses(config)
    host = config.advertise
    if host is None:
        wild = [name for name, address in bound.items() if is_wildcard(address)]
        if wild:
            hint = "others are told the address by which a question came; --advertise HOST says one for all"
            yield Finding("advertise", "note", f"not set, and {', '.join(wild)} on all addresses", hint)
        return
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        yield Finding(
            "advertise", "bad", f"{host}: {reason}", "a name that every client and node can resolve"
        )
        return
    yield _advertise(host, found, bound)
    for name, address in bound.items():
        port = split_address(address)[1]
        why = unreachable(host, port) if port else None
        if why == REFUSED:
            yield Finding(f"advertised {name}", "ok", f"{host}:{port}: {why} yet")
        elif why is not None:
            hint = "the name, a firewall, or how the port is published"
            yield Finding(f"advertised {name}", "bad", f"{host}:{port}: {why}", hint)


def _advertise(host: str, found: set[str], bound: dict[str, str]) -> Finding:
    shown = f"{host} is {', '.join(sorted(found))}"
    inner = all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in found)
    if inner and not all(map(is_loopback, bound.values())):
        hint = "other machines would reach themselves: a name that leads here from everywhere"
        return Finding("advertise", "bad", shown, hint)
    if not any(map(is_own, found)):
        hint = "no address of this machine: right behind a load balancer or NAT, else a slip"
        return Finding("advertise", "note", shown, hint)
    return Finding("advertise", "ok", shown)


def is_own(ip: str) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


REFUSED = "nobody listens"


def unreachable(host: str, port: int) -> str | None:
    """Why a connection failed; None if it succeeded."""
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return f"no answer in {REACH_S:g} s"
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        return re.sub(r"\s+", " ", text or "no name of a host")
    return None
