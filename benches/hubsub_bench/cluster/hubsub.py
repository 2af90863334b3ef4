"""HubSub nodes of `hubsub cluster up`: processes of one shard each, killed by pid, restarted by that command.

They publish no load samples: all room traffic between nodes comes from the clients.
"""

import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubsub.config import split_address
from hubsub.testing.rest import hubs_away
from hubsub_bench import BenchError
from hubsub_bench.cluster.resp import Connection
from hubsub_bench.cluster.subject import READY_S, Frames, Member, Pidfd, room_name
from hubsub_bench.servers import end_process, info

HUBSUB = (sys.executable, "-m", "hubsub")
CLASS = "default"
"""Class of the rooms of all rows."""
STILL_S = 0.5
"""Nodes update their frame counts with the links' heartbeats: after this time without a change they are complete."""
STOP_S = 90.0
POLL_S = 0.05
HTTP_S = 10.0
END_BYTES = 4_096
"""Length of the nodes' log in the error if one does not start."""
BEFORE_BYTES, BEHIND_BYTES = 16_384, 65_536
"""Length of the nodes' log before and after a kill, stored if a room stays silent."""


@dataclass(frozen=True, slots=True)
class HubSubCluster:
    """A HubSub cluster.

    Args:
        coordinator: Its URL; None for the embedded one.
        limits: Limits of all nodes, in addition to the benchmark's own.
    """

    coordinator: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    name: str = "HubSub"
    verb: str = "publish"
    is_forwarding: bool = True
    has_failover: bool = True

    @contextmanager
    def running(self, nodes: int, directory: Path) -> Iterator["RunningHubSub"]:
        command = [
            *HUBSUB,
            "cluster",
            "up",
            "--nodes",
            str(nodes),
            "--base-port",
            "0",
            "--shards",
            "1",
            "--json",
        ]
        settings = directory / "nodes.toml"
        limits = {"load_sample_ms": 0, **self.limits}
        settings.write_text("\n".join(["[limits]", *(f"{name} = {value}" for name, value in limits.items())]))
        command += ["--data", str(directory / "data"), "--classes", str(settings)]
        if self.coordinator is not None:
            command += ["--coordinator", self.coordinator]
        log = directory / "log"
        with open(log, "wb") as lines:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=lines,
                start_new_session=True,
            )
        cluster: RunningHubSub | None = None
        try:
            cluster = RunningHubSub(directory, log, _rows(process, nodes, log))
            cluster.wait_joined()
            yield cluster
        finally:
            if cluster is not None:
                cluster.close()
            end_process(process, STOP_S)


class RunningHubSub:
    def __init__(self, directory: Path, log: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        self._data, self._directory, self._log = directory / "data", directory, log
        self._killed_at = 0
        """Position of the last kill in the log."""
        self._count = len(rows)
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._pids: dict[str, Pidfd] = {}
        for row in rows:
            self._take(row)
        about = info(rows[0]["redis"])
        self.version = f"HubSub {about.get('hubsub_version', '')}".strip()
        self.build_profile = about.get("hubsub_build_profile", "")
        if self.build_profile == "debug":
            raise BenchError("the server is a debug build", None, "make build builds a release")

    def members(self) -> Sequence[Member]:
        rows = sorted(self._rows.items(), key=lambda item: int(item[0][1:]))
        return [Member(name, row["redis"], row["pid"], _node_ports(row)) for name, row in rows]

    def places(self, numbers: Collection[int]) -> dict[int, str]:
        with Connection(self.members()[0].address) as connection:
            for number in numbers:
                connection.send("HUBSUB", "LOCATE", room_name(number))
            return {number: _leader(connection.read()) for number in numbers}

    def frames(self, name: str) -> Frames:
        until = time.monotonic() + READY_S
        before, now = None, self._live()
        while before != now:
            if time.monotonic() > until:
                raise BenchError("the nodes do not come to rest", name)
            time.sleep(STILL_S)
            before, now = now, self._live()
        sent = sum(count for (node, _), count in now.items() if node == name)
        received = sum(count for (_, peer), count in now.items() if peer == name)
        return Frames(sent, received)

    def controller(self) -> str | None:
        found: str | None = self._seen(self.members()[0].name)["controller"]
        return found

    def kill(self, name: str) -> float:
        pid = self._pids.pop(name)
        del self._rows[name]
        self._killed_at = self._log.stat().st_size
        at_s = time.monotonic()
        pid.kill()
        pid.close()
        return at_s

    def evidence(self, room: str) -> Mapping[str, Any]:
        """The view of each node, and the log around the kill."""
        seen: dict[str, Any] = {}
        for member in self.members():
            try:
                seen[member.name] = _brief(self._seen(member.name)) | {
                    "locate": _located(member.address, room)
                }
            except (OSError, BenchError) as error:
                seen[member.name] = {"failed": str(error)}
        with open(self._log, "rb") as lines:
            lines.seek(max(0, self._killed_at - BEFORE_BYTES))
            text = lines.read(BEFORE_BYTES + BEHIND_BYTES).decode(errors="replace")
        return {"nodes": seen, "log": text.replace(str(self._directory), "DIRECTORY").splitlines()}

    def start(self, name: str) -> None:
        run = subprocess.run(
            [*HUBSUB, "cluster", "start", name, "--data", str(self._data), "--json"],
            capture_output=True,
            text=True,
            timeout=READY_S + STOP_S,
        )
        if run.returncode != 0:
            with open(self._log, "rb") as lines:
                lines.seek(max(self._killed_at, self._log.stat().st_size - END_BYTES))
                end = lines.read().decode(errors="replace")
            raise BenchError("a killed node does not start again", f"{name}: {run.stderr.strip()}\n{end}")
        self._take(json.loads(run.stdout.splitlines()[0]))
        self.wait_joined()

    def wait_joined(self) -> None:
        """Waits until the cluster is at rest: each node is ready, hears all others and leads its final hubs.

        Raises:
            BenchError: not within `READY_S`.
        """
        until = time.monotonic() + READY_S
        while not all(self._is_joined(name) for name in self._rows):
            if time.monotonic() > until:
                raise BenchError("the nodes do not find each other", self._count)
            time.sleep(POLL_S)

    def close(self) -> None:
        for pid in self._pids.values():
            pid.close()
        self._pids.clear()

    def _take(self, row: Mapping[str, Any]) -> None:
        self._rows[row["name"]] = row
        self._pids[row["name"]] = Pidfd(row["pid"])

    def _is_joined(self, name: str) -> bool:
        try:
            self._get(name, "/readyz")
            seen = self._seen(name)
        except OSError:
            return False
        return is_at_rest(seen, self._count)

    def _seen(self, name: str) -> Mapping[str, Any]:
        body: Mapping[str, Any] = json.loads(self._get(name, "/v1/cluster"))
        return body

    def _live(self) -> dict[tuple[str, str], int]:
        """Message frames that each node has sent to each other one."""
        found = {}
        for name in self._rows:
            for line in self._get(name, "/metrics").decode().splitlines():
                series, _, value = line.rpartition(" ")
                if series.startswith("hubsub_peer_sent_total{") and 'lane="live"' in series:
                    peer = series.partition('peer="')[2].partition('"')[0]
                    found[name, peer] = int(float(value))
        return found

    def _get(self, name: str, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self._rows[name]['http']}{path}", timeout=HTTP_S) as answer:
            body: bytes = answer.read()
            return body


def is_at_rest(seen: Mapping[str, Any], count: int) -> bool:
    """Whether, as a node sees it, that many nodes are up and are voters, and no hub is to move."""
    up = {node["name"] for node in seen["nodes"] if node["state"] == "up"}
    leaders = {hub["leader"] for hub in seen["hubs"] if hub["class"] == CLASS}
    return (
        len(up) == count
        and leaders == set(seen["voters"]["nodes"]) == up
        and not any(hub["proposed"] for hub in seen["hubs"])
        and not hubs_away(seen, up, [CLASS])
        and not (seen["voters"]["before"] or seen["wrong"])
    )


def _node_ports(row: Mapping[str, Any]) -> list[int]:
    """Ports of links, and of the embedded coordinator if there is one."""
    return [split_address(address)[1] for address in (row["link"], row.get("raft")) if address]


def _brief(seen: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster as a node sees it, without parts that are the same on all nodes."""
    kept = ("controller", "controller_term", "voters", "coordinator", "moves", "wrong")
    return {key: seen[key] for key in kept} | {
        "nodes": {node["name"]: node["state"] for node in seen["nodes"]},
        "hubs": {
            str(hub["hub"]): [hub["leader"], hub["term"], hub["proposed"]]
            for hub in seen["hubs"]
            if hub["class"] == CLASS
        },
    }


def _located(address: str, room: str) -> str:
    with Connection(address) as connection:
        return _leader(connection.ask("HUBSUB", "LOCATE", room))


def _leader(rows: object) -> str:
    match rows:
        case [[bytes(node), *_], *_]:
            return node.decode()
    raise BenchError("a room has no place", repr(rows))


def _rows(process: subprocess.Popen[bytes], nodes: int, log: Path) -> list[Mapping[str, Any]]:
    """A line of JSON per node, once all serve."""
    assert process.stdout is not None, "it is a pipe"
    rows: list[Mapping[str, Any]] = []
    until = time.monotonic() + READY_S
    for _ in range(nodes):
        # All lines come in one write, with nothing after it: buffered lines can be read at once.
        readable = rows or select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
        line = process.stdout.readline() if readable else b""
        if not line:
            last = log.read_text(errors="replace").strip().splitlines()[-8:]
            raise BenchError("the nodes do not start", "; ".join(last))
        rows.append(json.loads(line))
    return rows
