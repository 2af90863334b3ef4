"""A whole node as a process: start, REST, command line, client, reload, end."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import command_line
import pytest
from clients.mqtt import PUBLISH, Wire
from clients.servers import until

from hubsub.client import BlockingClient, Client, Gap, Options
from hubsub.errors import StartError
from hubsub.testing import Node

CHAT = [{"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}]


def ask(node: Node, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(node.http_url).netloc, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    is_json = (answer.getheader("content-type") or "").startswith("application/json")
    return answer.status, json.loads(data) if is_json else data.decode()


def hubsub(node: Node, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a `hubsub` command against this node."""
    return command_line.hubsub(*args, stdin=stdin, HUBSUB_URL=node.http_url, HUBSUB_SERVER=node.redis_url)


def metric(node: Node, name: str) -> float:
    lines = ask(node, "GET", "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def wait_log(node: Node, event: str) -> dict[str, Any]:
    """Waits for a log event of that name; returns the first."""

    def first() -> dict[str, Any]:
        entry = next((entry for entry in node.events if entry["event"] == event), {})
        assert entry or node.process.poll() is None, node.log
        return entry

    return until(first, event)


def test_a_node_is_ready_and_ends_cleanly_on_sigterm(make_node: Callable[..., Node]) -> None:
    node = make_node()
    assert set(node.ready) == {"event", "redis", "redis_cluster", "http", "ws", "mqtt", "link", "raft"}
    assert node.ready["mqtt"] is None
    assert ask(node, "GET", "/readyz") == (200, {"status": "ready", "log": "none", "reasons": []})
    assert node.stop() == 0
    assert [e["event"] for e in node.events][-1] == "node stopped"


def test_a_node_ends_with_the_process_that_made_it() -> None:
    code = "import os, signal; from hubsub.testing import Node; node = Node(); print(node.pid, flush=True)"
    code += "; os.kill(os.getpid(), signal.SIGKILL)"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    try:
        # Its log goes to a file and its output to a closed pipe, so only its process id shows that it has
        # ended.
        state = Path(f"/proc/{int(run.stdout)}/stat")
        until(lambda: not state.exists() or ") Z " in state.read_text(), "its end")
    except OSError:
        pass


def test_a_program_that_is_no_node_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be run"):
        Node(command=[str(tmp_path / "none")])
    with pytest.raises(StartError, match="no ready line"):
        Node(command=["/bin/echo", "hello"])


def test_a_node_starts_in_a_process_with_many_descriptors(make_node: Callable[..., Node]) -> None:
    import resource

    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1_200:
        pytest.skip("needs 1200 descriptors")
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        assert make_node().stop() == 0
    finally:
        for fd in taken:
            os.close(fd)


def test_listeners_for_mqtt_and_websockets_are_told_when_they_are_on(make_node: Callable[..., Node]) -> None:
    node = make_node(args=["--mqtt", ":0", "--ws", ":0"])
    ports = {node.mqtt[1], node.ws[1], node.redis[1]}
    assert len(ports) == 3 and 0 not in ports


def test_an_unknown_variable_is_logged_and_a_known_one_is_not(make_node: Callable[..., Node]) -> None:
    node = make_node(env={"HUBSUB_SHARD": "2", "HUBSUB_LOAD": "x", "HUBSUB_LIMITS_ROOMS_MAX": "9"})
    (told,) = (e for e in node.events if e["event"] == "unknown variable, ignored")
    assert (told["name"], told["hint"]) == ("HUBSUB_SHARD", "did you mean 'HUBSUB_SHARDS'?")


def test_an_address_in_use_stops_the_start_with_its_name(make_node: Callable[..., Node]) -> None:
    node = make_node(config={"redis_cluster": "127.0.0.1:0"})
    for key in ("redis", "redis_cluster", "http"):
        with pytest.raises(StartError) as caught:
            make_node(config={key: node.ready[key]})
        assert node.ready[key] in str(caught.value) and "cannot listen" in str(caught.value)


@pytest.mark.config(classes=CHAT)
def test_a_record_published_over_http_reaches_a_redis_subscriber_and_history(node: Node) -> None:
    with BlockingClient(node.redis_url) as client, client.subscribe("chat:a/b") as records:
        status, answer = ask(node, "POST", "/v1/publish", {"topic": "chat:a/b", "payload": "hé"})
        assert (status, answer["receivers"]) == (200, 1)
        record = records.get(timeout_s=30)
        assert record is not None and record.payload.decode() == "hé"
        assert str(record.position) == answer["position"]
    status, page = ask(node, "GET", "/v1/rooms/chat%3Aa%2Fb/history")
    assert [r["payload"] for r in page["records"]] == ["hé"]
    assert page["records"][0]["position"] == answer["position"]
    assert page["records"][0]["publisher"].startswith("http:")


@pytest.mark.parametrize(
    ("proxies", "believed"), [((), False), (("127.0.0.0/8",), True), (("192.0.2.1",), False)]
)
def test_whom_a_proxy_forwards_for_is_believed_of_those_that_are_named(
    proxies: tuple[str, ...], believed: bool, make_node: Callable[..., Node]
) -> None:
    node = make_node(classes=CHAT, config={"trusted_proxies": list(proxies)})
    item = {"topic": "chat:x", "payload": "x"}
    assert ask(node, "POST", "/v1/publish", item, **{"X-Forwarded-For": "203.0.113.9"})[0] == 200
    page = ask(node, "GET", "/v1/rooms/chat%3Ax/history")[1]
    publisher = page["records"][0]["publisher"]
    assert publisher.startswith("http:203.0.113.9:" if believed else "http:127.0.0.1:"), publisher


@pytest.mark.config(classes=CHAT)
def test_a_batch_with_one_key_is_published_once(node: Node) -> None:
    body = {"records": [{"topic": "chat:x", "payload": str(i)} for i in range(50)]}
    answers = [ask(node, "POST", "/v1/publish", body, **{"Idempotency-Key": "k1"}) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2] and len(answers[0][1]["results"]) == 50
    page = ask(node, "GET", "/v1/rooms/chat%3Ax/history?count=100")[1]
    assert [r["payload"] for r in page["records"]] == [str(i) for i in range(50)]


@pytest.mark.config(classes=CHAT)
def test_rooms_are_created_listed_shown_and_deleted(node: Node) -> None:
    names = [f"chat:r{i:02d}" for i in range(25)]
    for name in names:
        status, room = ask(node, "PUT", f"/v1/rooms/{name.replace(':', '%3A')}")
        assert (status, room["name"], room["class"]) == (201, name, "chat")
    assert ask(node, "PUT", "/v1/rooms/chat%3Ar00")[0] == 200
    listed: list[str] = []
    after = ""
    while after is not None:
        page = ask(node, "GET", f"/v1/rooms?match=chat%3A*&limit=10&after={after}")[1]
        listed += [room["name"] for room in page["rooms"]]
        after = page["next"]
    assert listed == names
    assert ask(node, "DELETE", "/v1/rooms/chat%3Ar00") == (204, "")
    assert ask(node, "GET", "/v1/rooms/chat%3Ar00")[1]["code"] == "no_such_room"
    with BlockingClient(node.redis_url) as client, client.subscribe("chat:r01"):
        status, error = ask(node, "DELETE", "/v1/rooms/chat%3Ar01")
        assert (status, error["code"]) == (409, "room_in_use")
        assert ask(node, "GET", "/v1/rooms/chat%3Ar01")[1]["subscribers"] == 1


@pytest.mark.config(classes=CHAT)
def test_a_created_room_outlives_the_sweep(node: Node) -> None:
    made = ask(node, "PUT", "/v1/rooms/chat%3Anew")[1]
    with BlockingClient(node.redis_url) as client, client.subscribe("chat:other"):
        pass
    while ask(node, "GET", "/v1/rooms/chat%3Aother")[0] != 404:
        pass
    status, room = ask(node, "GET", "/v1/rooms/chat%3Anew")
    assert (status, room["epoch"]) == (200, made["epoch"])
    assert ask(node, "DELETE", "/v1/rooms/chat%3Anew") == (204, "")


def test_a_client_is_listed_measured_and_closed(node: Node) -> None:
    with BlockingClient(node.redis_url, options=Options(name="watched")) as client:
        for i in range(10):
            client.publish("t", str(i))
        rows = ask(node, "GET", "/v1/clients?sort=messages_in")[1]["clients"]
        (row,) = [r for r in rows if r["name"] == "watched"]
        assert row["messages_in"] >= 10 and row["bytes_in"] > 100 and row["protocol"] == "resp3"
        assert ask(node, "GET", f"/v1/clients/{row['id']}")[1]["name"] == "watched"
        assert ask(node, "DELETE", f"/v1/clients/{row['id']}")[0] == 204
        while ask(node, "GET", f"/v1/clients/{row['id']}")[0] != 404:
            pass
        client.ping()  # On a new connection.
    assert ask(node, "DELETE", "/v1/clients/999999999")[1]["code"] == "no_such_client"


def test_an_mqtt_client_is_found_and_closed_by_its_client_id(make_node: Callable[..., Node]) -> None:
    node = make_node(args=["--mqtt", ":0"], limits={"mqtt_inflight_max": 2})
    with Wire(node.mqtt) as device, Wire(node.mqtt) as other, BlockingClient(node.redis_url) as redis:
        device.connect("7", keep_alive_s=90)
        device.subscribe(("t", 1))
        other.connect("70")
        for i in range(5):
            redis.publish("t", str(i))
        (row,) = ask(node, "GET", "/v1/clients?client_id=7&client_id=8")[1]["clients"]
        shown = {
            key: row[key]
            for key in ("name", "protocol", "keep_alive_s", "inflight", "inflight_max", "waiting")
        }
        assert shown == {
            "name": "7",
            "protocol": "mqtt3.1.1",
            "keep_alive_s": 90,
            "inflight": 2,
            "inflight_max": 2,
            "waiting": 3,
        }
        assert ask(node, "GET", "/v1/clients?sort=waiting")[1]["clients"][0]["name"] == "7"
        assert (
            json.loads(hubsub(node, "client", "show", "--client-id", "7", "--json").stdout)["id"] == row["id"]
        )
        for args in (("show",), ("kill", "7", "--client-id", "7")):
            assert hubsub(node, "client", *args).returncode == 2
        assert hubsub(node, "client", "kill", "--client-id", "7").returncode == 0
        assert [packet.kind for packet in device.read_all()] == [PUBLISH, PUBLISH]
        gone = hubsub(node, "client", "show", "--client-id", "7")
        assert gone.returncode == 1 and "no client is connected under this client id: 7" in gone.stderr
        listed = hubsub(node, "client", "ls", "--client-id", "70", "--json").stdout
        assert json.loads(listed)["name"] == "70"


def test_every_number_of_a_client_can_be_sorted_by(node: Node) -> None:
    document = ask(node, "GET", "/v1/openapi.json")[1]
    (sort,) = [p for p in document["paths"]["/v1/clients"]["get"]["parameters"] if p["name"] == "sort"]
    with BlockingClient(node.redis_url), BlockingClient(node.redis_url) as talks:
        for _ in range(3):
            talks.publish("chat:1", b"x" * 100)
        for key in sort["schema"]["enum"]:
            code, page = ask(node, "GET", f"/v1/clients?sort={key}")
            assert code == 200, key
            numbers = [client[key] for client in page["clients"]]
            assert len(numbers) == 2 and (key.endswith("_s") or numbers == sorted(numbers, reverse=True)), key


@pytest.mark.config(classes=CHAT)
def test_the_command_line_does_what_the_api_does(node: Node) -> None:
    generated = hubsub(node, "demo", "generate", "--events", "300", "--rooms", "5").stdout
    assert "published 300 records" in hubsub(node, "pub", "--from", "-", stdin=generated).stderr
    rooms = [json.loads(line) for line in hubsub(node, "room", "ls", "chat:*", "--json").stdout.splitlines()]
    assert sum(room["seq"] for room in rooms) == 300
    name = rooms[0]["name"]
    history = hubsub(node, "room", "history", name, "-n", "3", "--json").stdout.splitlines()
    position = json.loads(history[0])["position"]
    sub = hubsub(node, "sub", name, "--resume", position, "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(r)["payload"] for r in sub] == [json.loads(r)["payload"] for r in history[1:]]
    assert len(hubsub(node, "sub", name, "--rewind", "3", "-n", "3").stdout.splitlines()) == 3
    assert len(hubsub(node, "sub", name, "--rewind", "1h", "-n", "5").stdout.splitlines()) == 5
    assert hubsub(node, "room", "show", name).returncode == 0
    occupancy = hubsub(node, "room", "occupancy", name, "--json").stdout
    assert json.loads(occupancy)["by_protocol"] == {"redis": 0, "mqtt": 0, "phoenix": 0, "events": 0}
    assert hubsub(node, "room", "delete", name).returncode == 0
    gone = hubsub(node, "room", "show", name)
    assert gone.returncode == 1 and "no such room" in gone.stderr
    for command in ("client ls --sort bytes_in", "node ls", "node show", "class ls", "top --once", "doctor"):
        run = hubsub(node, *command.split())
        assert run.returncode == 0 and run.stdout, (command, run.stderr)


@pytest.mark.config(classes=CHAT)
async def test_a_client_that_lost_its_connection_resumes_without_gap_or_double(node: Node) -> None:
    gaps: list[Gap] = []
    options = Options(name="victim", backoff_s=0.001)
    async with Client(node.redis_url) as other, Client(node.redis_url, options=options) as client:
        async with client.subscribe("chat:r", on_gap=gaps.append) as records:
            got = []
            for i in range(200):
                await other.publish("chat:r", str(i))
                if i % 50 == 10:
                    rows = (await asyncio.to_thread(ask, node, "GET", "/v1/clients?limit=100"))[1]["clients"]
                    for row in rows:
                        if row["name"] == "victim":
                            await asyncio.to_thread(ask, node, "DELETE", f"/v1/clients/{row['id']}")
            while len(got) < 200:
                got.append(await anext(records))
            assert [int(r.payload) for r in got] == list(range(200))
            assert gaps == [] and records.reconnects >= 1


async def test_a_new_life_of_the_node_is_not_taken_for_the_old_one(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    config = {"data": str(tmp_path / "data")}
    first = make_node(classes=CHAT, config=config)
    async with Client(first.redis_url, options=Options(backoff_s=0.001)) as client:
        async with client.subscribe("chat:r") as records:
            await client.publish("chat:r", "1")
            before = await anext(records)
            first.stop()
            second = make_node(classes=CHAT, config=config | {"redis": first.ready["redis"]})
            async with Client(second.redis_url) as other:
                while await other.publish("chat:r", "2") == 0:
                    pass
                record = await anext(records)
                assert record.payload == b"2" and record.gap is not None
                assert before.position is not None and record.position is not None
                assert record.position.epoch != before.position.epoch
                assert not (await other.history("chat:r", after=before.position)).recovered


def test_each_life_with_data_has_a_higher_incarnation(make_node: Callable[..., Node], tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        node = make_node(config={"data": str(tmp_path / "d")})
        lives.append(ask(node, "GET", "/v1/nodes")[1]["nodes"][0]["incarnation"])
        node.stop()
    assert lives == sorted(set(lives))


def test_a_data_directory_belongs_to_one_node(make_node: Callable[..., Node], tmp_path: Path) -> None:
    make_node(config={"data": str(tmp_path)})
    with pytest.raises(StartError, match="another node uses this data directory"):
        make_node(config={"data": str(tmp_path)})


def test_sighup_takes_limits_over_and_names_what_the_next_start_takes(node: Node) -> None:
    text = node.config_file.read_text().replace("shards = 2", "shards = 1")
    node.config_file.write_text(text + "\n[limits]\npublishes_per_minute_max = 1\n")
    node.process.send_signal(signal.SIGHUP)
    entry = wait_log(node, "configuration reloaded")
    assert entry["limits"] == {"publishes_per_minute_max": 1}
    assert wait_log(node, "takes effect at the next start")["keys"] == ["shards"]
    with BlockingClient(node.redis_url) as client:
        client.publish("t", "1")
        with pytest.raises(Exception, match="max publishes per minute"):
            client.publish("t", "2")


def test_a_bad_reload_keeps_the_old_configuration(node: Node) -> None:
    node.config_file.write_text("redsi = 1\n")
    node.process.send_signal(signal.SIGHUP)
    assert "redsi" in str(wait_log(node, "reload refused, the old configuration stays")["problems"])
    assert ask(node, "GET", "/readyz")[0] == 200


def test_metrics_count_what_passed_and_tell_socket_time_from_routing_time(node: Node) -> None:
    times = ("hubsub_shard_socket_seconds_total", "hubsub_shard_routing_seconds_total")
    with BlockingClient(node.redis_url) as client, client.subscribe("t") as records:
        # Only a sample of the loop's turns is timed, so publish until a sample was taken.
        for _ in range(1_000):
            client.publish("t", "x")
            assert records.get(30)
            if all(metric(node, name) > 0 for name in times):
                break
    text = ask(node, "GET", "/metrics")[1]
    told = {line.split("{")[0] for line in text.splitlines() if "_seconds_total{" in line}
    assert told >= set(times), text
    assert all(metric(node, name) > 0 for name in times)


def test_the_busiest_clients_are_told_in_the_log(make_node: Callable[..., Node]) -> None:
    node = make_node(limits={"busiest_log_ms": 50})
    with BlockingClient(node.redis_url, options=Options(name="busy")) as client, client.subscribe("t"):
        while not any(e["event"] == "busiest clients" for e in node.events):
            client.publish_many([("t", "x")] * 100)
    entry = wait_log(node, "busiest clients")
    assert entry["clients"][0]["conn"]


def test_a_wildcard_listener_needs_insecure_open_and_tells_the_route(make_node: Callable[..., Node]) -> None:
    with pytest.raises(StartError, match="--insecure-open"):
        make_node(config={"redis": "0.0.0.0:0"})
    node = make_node(config={"redis": "0.0.0.0:0", "insecure_open": True})
    told = ask(node, "GET", "/nodes")[1][0]["redis"]
    assert told == f"127.0.0.1:{node.redis[1]}"


def test_an_oversized_body_costs_nothing(make_node: Callable[..., Node]) -> None:
    node = make_node(limits={"http_body_bytes_max": "1KiB"})
    status, error = ask(node, "POST", "/v1/publish", {"topic": "t", "payload": "x" * 5_000})
    assert (status, error["code"]) == (413, "body_too_large")
    assert ask(node, "GET", "/livez")[0] == 200


def test_connections_without_a_request_do_not_keep_others_out(make_node: Callable[..., Node]) -> None:
    node = make_node(limits={"http_connections_max": 3, "request_timeout_ms": 200})
    address = (urlsplit(node.http_url).hostname or "", urlsplit(node.http_url).port or 0)
    silent = [socket.create_connection(address, timeout=30) for _ in range(3)]
    silent[0].sendall(b"GET /livez HT")
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()
    assert ask(node, "GET", "/livez")[0] == 200
