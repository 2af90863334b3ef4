"""Notifications to the service manager that started the node: systemd's notification protocol.

A message is one datagram of `NAME=value` lines to the Unix socket in NOTIFY_SOCKET: a path, or an abstract
name after `@` (sd_notify(3), sd_watchdog_enabled(3)). Without the variable nothing is sent.

Invariants: a message never blocks and never raises, so that a service manager that does not listen cannot
stop a node. A failure is logged once.
"""

import os
import socket
import time
from collections.abc import Mapping

import structlog

log = structlog.get_logger()


class Notifier:
    """Sends notifications to the service manager, if there is one.

    Args:
        environ: Default: the process's environment.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        where = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + where[1:] if where.startswith("@") else where
        if where and where[0] not in "@/":
            log.warning("no way to notify the service manager", socket=where)
            self._address = ""
        self._is_told = False
        self.watchdog_s = _watchdog_s(environ) if self._address else None
        """The process is killed after this time without `watchdog`, in seconds; None: no watchdog."""

    def ready(self, status: str) -> bool:
        """The node serves, from now on or again. Like the methods below, returns whether the message was sent."""
        return self._send("READY=1", status=status)

    def stopping(self, status: str) -> bool:
        """The node has begun to stop."""
        return self._send("STOPPING=1", status=status)

    def reloading(self) -> bool:
        """The node reads its configuration again; `ready` marks the end."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def status(self, status: str) -> bool:
        """Sets the line that `systemctl status` shows."""
        return self._send(status=status)

    def watchdog(self) -> bool:
        """Resets the service manager's watchdog timer."""
        return self._send("WATCHDOG=1")

    def _send(self, *lines: str, status: str = "") -> bool:
        if not self._address:
            return False
        message = "\n".join([*lines, *([f"STATUS={' '.join(status.split())}"] if status else [])])
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(message.encode(), self._address)
        except BlockingIOError:
            return False  # The queue is full now; a later message may succeed.
        except OSError as error:
            # For example while no descriptor is left. The next message is tried nevertheless.
            if not self._is_told:
                log.warning("the service manager cannot be notified", reason=error.strerror or str(error))
            self._is_told = True
            return False
        return True


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The watchdog's time, if it watches this process."""
    pid, text = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if (pid and pid != str(os.getpid())) or not text.isascii() or not text.isdigit() or not int(text):
        return None
    return int(text) / 1_000_000
