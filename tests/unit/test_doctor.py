"""`hubsub doctor` reports faulty machines, clocks, disks, addresses and clusters."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import HUBSUB, environment

from hubsub.cli.doctor import directory, listeners, machine
from hubsub.cli.doctor.clock import KernelClock, PeerClock, clock, kernel_clock, peer_clocks
from hubsub.cli.doctor.directory import filesystem, sync_time
from hubsub.cli.doctor.finding import Finding
from hubsub.cli.doctor.listeners import Holder, advertised, holder, unreachable
from hubsub.cli.doctor.nodes import cluster, seen_from, whole
from hubsub.config import Config, resolve
from hubsub.errors import NoClusterError


def by_check(found: Iterable[Finding]) -> dict[str, Finding]:
    """Findings by the name of the check; each one that is not ok has a hint."""
    rows = list(found)
    assert all(row.hint for row in rows if row.state != "ok"), rows
    assert all(row.state in ("ok", "note", "bad") for row in rows)
    return {row.check: row for row in rows}


def config(**keys: Any) -> Config:
    return resolve({"redis": "127.0.0.1:0", "http": "off", "insecure_open": True, **keys}, {}, {})


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a listening socket."""
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    with listening() as port:
        return port


# -- the machine --


def test_a_core_of_another_version_is_bad_and_one_for_debugging_is_noted() -> None:
    assert machine.core("0.1.0", "release", "0.1.0").state == "ok"
    other, slow = machine.core("0.0.9", "release", "0.1.0"), machine.core("0.1.0", "debug", "0.1.0")
    assert (other.state, other.found) == ("bad", "0.0.9, in a package of 0.1.0")
    assert slow.state == "note" and other.hint and slow.hint


def test_few_descriptors_say_how_many_connections_fit() -> None:
    few = machine.descriptors(1_024, 8_192)
    assert few.state == "note" and few.hint.startswith("about 6080 connections fit beside 2048")
    assert machine.descriptors(1_024, 1_024).hint.startswith("about 448 connections fit beside 512")
    assert machine.descriptors(1_024, 65_536).state == "ok", "a node raises its soft limit"
    assert machine.descriptors(65_536, resource.RLIM_INFINITY).state == "ok"


def system(root: Path, **values: str) -> Path:
    """Writes a fake /proc/sys and /sys."""
    for name, value in {
        "proc/sys/net/core/somaxconn": "4096",
        "proc/sys/vm/overcommit_memory": "0",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        **{name.replace("__", "/"): value for name, value in values.items()},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")
    return root


def test_limits_of_the_kernel_that_are_too_low_name_the_command_that_raises_them(tmp_path: Path) -> None:
    good = by_check(machine.allowed(system(tmp_path / "good")))
    assert {good[name].state for name in ("net.core.somaxconn", "vm.overcommit_memory", "huge pages")} == {
        "ok"
    }
    bad = by_check(
        machine.allowed(
            system(
                tmp_path / "bad",
                proc__sys__net__core__somaxconn="128",
                proc__sys__vm__overcommit_memory="2",
                sys__kernel__mm__transparent_hugepage__enabled="[always] madvise never",
            )
        )
    )
    assert bad["net.core.somaxconn"].state == "note"
    assert "sysctl -w net.core.somaxconn=4096" in bad["net.core.somaxconn"].hint
    assert bad["vm.overcommit_memory"].state == bad["huge pages"].state == "note"
    assert "fs.nr_open" not in bad, "what is not there is not told"


# -- clocks --


def test_a_clock_that_nobody_keeps_is_noted_and_so_is_a_large_error() -> None:
    states = [
        by_check(clock(KernelClock(*pair)))["clock"].state
        for pair in ((True, 3.0), (False, 16e3), (True, 5e3))
    ]
    assert states == ["ok", "note", "note"] and list(clock(None)) == []


def test_the_kernel_is_asked_for_its_clock() -> None:
    kernel = kernel_clock()
    assert (kernel is None) is (sys.platform != "linux")
    assert kernel is None or kernel.error_ms >= 0


def test_a_clock_of_a_peer_is_bad_only_if_it_is_surely_off() -> None:
    peers = [PeerClock("n1", 200, 1), PeerClock("n2", -400, 20), PeerClock("n3", 400, 450)]
    found = by_check(peer_clocks(peers))
    assert [found[f"clock of n{n}"].state for n in (1, 2, 3)] == ["ok", "bad", "ok"]
    assert found["clock of n2"].found == "-400.0 ms, give or take 20.0"


# -- the data directory --


def test_a_disk_that_syncs_slowly_is_noted_with_its_times(tmp_path: Path) -> None:
    def with_ms(milliseconds: float) -> Finding:
        ticks = iter(t for i in range(1_000) for t in (i, i + milliseconds / 1_000))
        return sync_time(tmp_path, lambda fd: None, lambda: next(ticks))

    assert with_ms(2).state == "ok"
    slow = by_check([with_ms(40)])["disk sync"]
    assert (slow.state, slow.found) == ("note", "median 40.00 ms, worst of 16 40.00 ms")
    assert sync_time(tmp_path).state in ("ok", "note") and not list(tmp_path.iterdir())


def test_a_disk_that_cannot_sync_is_bad(tmp_path: Path) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    found = by_check([sync_time(tmp_path, fail)])["disk sync"]
    assert found.state == "bad" and "Input/output error" in found.found


def test_a_disk_without_inodes_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs_result((4096, 4096, 10**9, 10**9, 10**9, 100, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    found = by_check(directory.data(config(data=str(tmp_path)), tmp_path))["data"]
    assert found.state == "bad" and "inodes" in found.hint


@pytest.mark.parametrize(("kind", "state"), [("ext4", "ok"), ("tmpfs", "note"), ("nfs4", "note")])
def test_a_file_system_that_forgets_or_is_far_is_noted(tmp_path: Path, kind: str, state: str) -> None:
    mounts, where = tmp_path / "mountinfo", tmp_path / "my data"
    where.mkdir()
    point = str(where.resolve()).replace(" ", "\\040")
    mounts.write_text(
        f"22 1 8:1 / / rw,relatime shared:1 - xfs /dev/a rw\n36 22 8:2 / {point} rw - {kind} /dev/b rw\n"
    )
    assert filesystem(where / "log", mounts) == kind and filesystem(Path("/"), mounts) == "xfs"
    assert by_check(directory._kind(where, mounts))["file system"].state == state
    assert list(directory._kind(where, tmp_path / "none")) == []


# -- addresses --


def test_a_port_that_another_program_holds_is_bad_and_names_it() -> None:
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', 0))\n"
    program += "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout
        port = int(other.stdout.readline())
        found = by_check(listeners.listeners(config(redis=f"127.0.0.1:{port}")))["redis listener"]
        other.communicate("")
    assert found.state == "bad" and f"127.0.0.1:{port} is held by pid {other.pid}: " in found.found


@pytest.mark.needs("hubsub-core")
def test_a_port_that_a_node_holds_is_noted() -> None:
    command = [*HUBSUB, "serve", "--redis", ":0", "--http", "off", "--shards", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), text=True
    ) as node:
        assert node.stdout
        port = int(node.stdout.readline().split('"redis":"127.0.0.1:')[1].partition('"')[0])
        found = by_check(listeners.listeners(config(redis=f"127.0.0.1:{port}")))["redis listener"]
        node.terminate()
    assert (found.state, found.hint) == ("note", "a node runs there") and f"pid {node.pid}: " in found.found


def test_a_node_is_known_by_its_command_and_not_by_its_path() -> None:
    for line in (
        "/opt/x/python -m hubsub serve",
        "/opt/hubsub/bin/python /opt/hubsub/bin/hubsub serve",
        "hubsub serve",
        "/opt/x/python -c forks hubsub.testing",
    ):
        assert Holder(1, line.split()).is_node
    assert not Holder(1, ["/opt/hubsub/bin/python", "-c", "import hubsub"]).is_node


def test_a_holder_that_cannot_be_seen_is_nobody(tmp_path: Path) -> None:
    with listening() as port:
        assert holder(port) is not None and holder(port, tmp_path) is None


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("192.0.2.1:3221", "no address of this machine"),
        ("nobody.invalid:3221", "a name or an address of this machine"),
    ],
)
def test_an_address_that_is_not_here_is_bad(address: str, text: str) -> None:
    found = by_check(listeners.listeners(config(redis=address)))["redis listener"]
    assert found.state == "bad" and text in found.hint


def test_a_wildcard_without_an_advertised_host_is_noted() -> None:
    assert list(advertised(config())) == []
    found = by_check(advertised(config(redis="0.0.0.0:0", http="[::]:0")))["advertise"]
    assert found.state == "note" and "redis, http" in found.found and "--advertise" in found.hint


def test_an_advertised_host_must_be_known_and_lead_here() -> None:
    def told(host: str, **keys: Any) -> Finding:
        return by_check(advertised(config(advertise=host, **keys)))["advertise"]

    assert told("nobody.invalid").state == "bad"
    assert told("localhost").state == "ok"
    inner = told("localhost", redis="0.0.0.0:0")
    assert inner.state == "bad" and "other machines" in inner.hint
    foreign = told("192.0.2.1")
    assert foreign.state == "note" and "load balancer" in foreign.hint


def test_an_advertised_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as port:
        reached = by_check(advertised(config(advertise="127.0.0.1", redis=f"127.0.0.1:{port}")))
    assert "advertised redis" not in reached
    refused = by_check(advertised(config(advertise="127.0.0.1", redis=f"127.0.0.1:{port}")))[
        "advertised redis"
    ]
    assert refused.state == "ok" and "nobody listens yet" in refused.found

    def slow(*args: Any, **kwargs: Any) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    blocked = by_check(advertised(config(advertise="127.0.0.1", redis="127.0.0.1:1")))["advertised redis"]
    assert blocked.state == "bad" and "no answer in 2 s" in blocked.found and "firewall" in blocked.hint
    assert unreachable("127.0.0.1", 1) == "no answer in 2 s"


# -- a cluster --


def row(name: str, redis: str, **more: Any) -> dict[str, Any]:
    fields = {"name": name, "redis": redis, "http": None, "version": "0.1.0", "build_profile": "release"}
    return fields | {"running": True} | more


def test_each_node_is_tried_where_it_says_that_it_is() -> None:
    with listening() as port:
        here, gone = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
        rows = [row("n1", here), row("n2", here, http=gone, link="nobody.invalid:3222"), row("n3", "what")]
        found = by_check(cluster(rows, "127.0.0.1"))
    assert (found["node n1"].state, found["node n1"].found) == ("ok", f"0.1.0, reached: redis {here}")
    assert found["node n2"].state == found["node n3"].state == "bad"
    assert f"http {gone}: nobody listens; link nobody.invalid:3222: " in found["node n2"].found
    assert found["node n3"].found == "redis what: no address"
    assert set(found) == {"node n1", "node n2", "node n3"}


def test_nodes_of_several_versions_are_noted_and_a_failed_one_is_bad() -> None:
    with listening() as port:
        here = f"127.0.0.1:{port}"
        rows = [
            row("n1", here),
            row("n2", here, version="0.2.0"),
            row("n3", here, build_profile="debug", running=False),
        ]
        found = by_check(cluster(rows, "127.0.0.1"))
    assert (
        found["nodes' version"].found == "0.1.0: n1, n3; 0.2.0: n2"
        and found["nodes' version"].state == "note"
    )
    assert found["nodes' build profile"].state == "note"
    assert found["node n3"].state == "bad" and "shard" in found["node n3"].found


def test_a_node_that_is_told_as_loopback_is_bad_for_who_asks_from_elsewhere() -> None:
    with listening() as port:
        rows = [row("n1", f"127.0.0.1:{port}"), row("n2", f"127.0.0.1:{port}")]
        assert {f.state for f in cluster(rows, "127.0.0.1")} == {"ok"}
        assert {f.state for f in cluster(rows, "10.0.0.1")} == {"bad"}
        assert {f.state for f in cluster(rows[:1], "10.0.0.1")} == {"ok"}, "one node is no cluster"


def test_clocks_that_a_node_tells_of_its_peers_are_judged() -> None:
    with listening() as port:
        up, down = [{"state": "down"}, {"state": "up"}], [{"state": "down"}]
        peers = [
            {"node": "n2", "clock_offset_us": 900_000, "clock_error_us": 100, "links": up},
            {"node": "n3", "clock_offset_us": -1_000, "clock_error_us": 100, "links": up},
            {"node": "n4", "clock_offset_us": None, "clock_error_us": None, "links": up},
            {"node": "n5", "clock_offset_us": 0, "clock_error_us": 0, "links": down},
        ]
        found = by_check(cluster([row("n1", f"127.0.0.1:{port}", peers=peers)], "127.0.0.1"))
    assert found["clock of n2"].state == "bad" and found["clock of n3"].state == "ok"
    assert not found.keys() & {"clock of n4", "clock of n5"}, "nothing is known of those now"


def test_what_a_node_finds_wrong_with_its_cluster_is_told_and_a_node_alone_has_none() -> None:
    class Answers:
        def __init__(self, wrong: list[str] | None) -> None:
            self.wrong = wrong

        def get(self, path: str) -> dict[str, Any]:
            if self.wrong is None:
                raise NoClusterError
            return {"node": "n1", "controller": "n1", "nodes": [{"name": "n1"}], "wrong": self.wrong}

    def told(wrong: list[str] | None) -> list[tuple[str, str]]:
        return [(row.state, row.found) for row in whole(Answers(wrong))]  # type: ignore[arg-type]

    assert told(["node n2: dead", "no majority"]) == [("bad", "node n2: dead"), ("bad", "no majority")]
    assert told([]) == [("ok", "controller n1, nodes n1")] and told(None) == []


@pytest.mark.parametrize(
    ("tried", "link", "found"),
    [
        ({"problem": None}, {"state": "up", "reason": None}, "1 addresses and all links: n2"),
        (
            {"problem": "no answer in 2 s"},
            {"state": "up", "reason": None},
            "redis 10.0.0.2:3221 of n2: no answer in 2 s",
        ),
        (
            {"problem": None},
            {"state": "dialing", "reason": "connection refused"},
            "link to n2: dialing, connection refused",
        ),
    ],
)
def test_each_node_says_which_addresses_and_links_of_the_others_it_reaches(
    tried: dict[str, Any], link: dict[str, Any], found: str
) -> None:
    class Answers:
        def get(self, path: str, **query: object) -> dict[str, Any]:
            assert query == ({"node": "n1"} if path == "/v1/cluster/reached" else {})
            address = {"node": "n2", "listener": "redis", "address": "10.0.0.2:3221"}
            return {"peers": [{"node": "n2", "links": [link]}], "addresses": [address | tried]}

    finding = seen_from(Answers(), "n1")  # type: ignore[arg-type]
    assert (finding.check, finding.found) == ("seen from n1", found)
    assert (finding.state == "ok") is (found[0] == "1") and bool(finding.hint) is (finding.state == "bad")
