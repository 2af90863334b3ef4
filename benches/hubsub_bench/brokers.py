"""MQTT brokers measured beside HubSub: Mosquitto, started for every run, or any broker that already runs."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hubsub.errors import without_secrets
from hubsub_bench import BenchError
from hubsub_bench.machine import Cores
from hubsub_bench.servers import (
    START_S,
    RedisServer,
    Running,
    RunningServer,
    Store,
    Target,
    free_port,
    listening,
)

CONNECT = bytes.fromhex("100c00044d515454040200000000")
"""CONNECT of MQTT 3.1.1: clean session, no keep alive, no client id."""
CONNACK = bytes.fromhex("20020000")

PORT = 1883


@dataclass(frozen=True, slots=True)
class Mosquitto:
    """A `mosquitto` without persistence, and with unlimited queues, so that it loses no counted message."""

    name: str = "Mosquitto"
    protocols: frozenset[str] = frozenset({"mqtt"})

    @contextmanager
    def running(self, cores: Cores, shards: int, store: Store | None = None) -> Iterator[Running]:
        """Runs the broker on its cores until the end of the block. It routes on one thread, whatever `shards` is.

        Args:
            cores: Cores of server and generator.
            shards: Ignored.
            store: Ignored.
        """
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if program is None:
            raise BenchError("mosquitto is not in PATH", None, "apt-get install mosquitto")
        port = free_port()
        lines = [
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            "persistence false",
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            "log_dest none",
            "user root",
        ]
        with tempfile.TemporaryDirectory() as directory:
            config = Path(directory, "mosquitto.conf")
            config.write_text("\n".join(lines) + "\n", encoding="utf-8")
            address = f"127.0.0.1:{port}"
            with listening([program, "-c", str(config)], port, cores) as pid:
                yield Running(address, pid, _version(program), "", mqtt=address)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that already runs and is not stopped; its cores are not changed.

    Args:
        url: `mqtt://HOST:PORT`.
        pid: Its process; without it neither CPU time nor memory is known.
    """

    url: str
    pid: int | None = None
    name: str = "peer"
    protocols: frozenset[str] = frozenset({"mqtt"})

    @contextmanager
    def running(self, cores: Cores, shards: int, store: Store | None = None) -> Iterator[Running]:
        address = self.address()
        yield Running(address, self.pid, "MQTT broker", "", mqtt=address)

    def check(self) -> None:
        """Raises BenchError if it accepts no client, so that this is known before the other server's first run."""
        address = self.address()
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), START_S) as connection:
                connection.sendall(CONNECT)
                answer = connection.recv(len(CONNACK), socket.MSG_WAITALL)
        except OSError as error:
            raise BenchError(
                "the broker cannot be reached", f"{address} ({error.strerror or error})"
            ) from error
        if answer != CONNACK:
            raise BenchError("the broker takes no client", f"{address} ({answer.hex()})")

    def address(self) -> str:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or PORT
        except ValueError:
            host, port = None, 0
        if host is None:
            shown = without_secrets(self.url)
            raise BenchError("this broker cannot be measured", shown, "mqtt://HOST:PORT, or mosquitto")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_peer(text: str) -> Target:
    match text:
        case "redis-server":
            return RedisServer()
        case "mosquitto":
            return Mosquitto()
        case _:
            return running(text, None, "peer")


def running(url: str, pid: int | None, name: str) -> RunningServer | RunningBroker:
    """A server that already runs, by its URL.

    Args:
        url: `redis://HOST:PORT` or `mqtt://HOST:PORT`.
        pid: Its process; None if unknown.
        name: Name in tables.
    """
    kind = RunningBroker if url.startswith("mqtt://") else RunningServer
    return kind(url, pid, name)


def _version(program: str) -> str:
    said = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    first = said.partition("\n")[0].split()
    return f"Mosquitto {first[-1]}" if first else "Mosquitto"
