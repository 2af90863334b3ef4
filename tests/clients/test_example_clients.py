"""The small clients under `examples` work as their first lines describe; `tests/pipeline` tests those of Spark."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, tab
from command_line import environment
from playwright.sync_api import expect

from clients.mqtt import V5, Paho
from clients.raw import TIMEOUT_S
from clients.servers import until
from hubsub import BlockingClient
from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core")

CHAT = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}


@contextlib.contextmanager
def running(*command: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A program with its input and output as pipes; it is killed in the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        env=environment(**env),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str], begin: str) -> str:
    """The rest of its next line that begins so; the time-out of the test ends a program that prints none."""
    assert process.stdout is not None
    printed = []
    for text in process.stdout:
        if text.startswith(begin):
            return text.removeprefix(begin).strip()
        printed.append(text)
    raise AssertionError(f"it ended without {begin!r}: {printed}")


@pytest.fixture
def examples(repository: Path) -> Path:
    return repository / "examples"


@pytest.mark.config(classes=[CHAT])
def test_two_terminals_chat_and_a_third_reads_what_was_said(node: Node, examples: Path) -> None:
    chat = (examples / "asyncio_chat.py", "--url", node.redis_url)
    with running(*chat, "Ann") as ann, running(*chat, "Ben") as ben:
        for person, text in ((ann, "is anybody here?"), (ben, "yes")):
            assert person.stdin is not None
            person.stdin.write(f"{text}\n")
            assert line(person, "") in ("Ann: is anybody here?", "Ben: yes")
        assert line(ann, "Ben: ") == "yes"
        with BlockingClient(node.redis_url) as client:
            client.publish("chat:lobby", "[no JSON of a chat")
        assert line(ann, "[no JSON") and line(ben, "[no JSON")
        for person in (ann, ben):
            assert person.stdin is not None
            person.stdin.close()
            assert person.wait(TIMEOUT_S) == 0
    with running(*chat, "Cid") as late:
        assert [line(late, "") for _ in range(3)] == [
            "Ann: is anybody here?",
            "Ben: yes",
            "[no JSON of a chat",
        ]
        late.send_signal(signal.SIGINT)
        assert late.wait(TIMEOUT_S) == 0


@pytest.mark.config(classes=[CHAT])
def test_a_web_service_takes_posts_and_streams_a_room(node: Node, examples: Path) -> None:
    service = ("-m", "uvicorn", "--app-dir", examples, "fastapi_rooms:app", "--port", "0")
    with running(*service, HUBSUB_SERVER=node.redis_url) as process:
        address = re.split(r"[ (]", line(process, "INFO:     Uvicorn running on "))[0]
        room = f"{address}/rooms/lobby"

        def post(body: Any) -> Any:
            data, fields = json.dumps(body).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(room, data, fields)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)

        def read(events: Any) -> dict[str, str]:
            block = iter(lambda: events.readline().decode().rstrip("\n"), "")
            fields: dict[str, str] = {}
            for name, _, value in (text.partition(": ") for text in block):
                fields[name] = f"{fields[name]}\n{value}" if name in fields else value
            return fields

        assert post({"user": "Ann", "text": "first"}) == {"receivers": 0}
        with urllib.request.urlopen(f"{room}/events", timeout=TIMEOUT_S) as events:
            assert events.headers["Content-Type"].startswith("text/event-stream")
            assert read(events) == {"": "open"}
            first = read(events)
            assert json.loads(first["data"]) == {"user": "Ann", "text": "first", "kind": "message"}
            assert post({"user": "Ben", "text": "second"}) == {"receivers": 1}
            second = read(events)
            assert json.loads(second["data"])["user"] == "Ben"
            with BlockingClient(node.redis_url) as client:
                client.publish("chat:lobby", "two\nlines\rid: 0-0")
            assert read(events)["data"] == "two\nlines\nid: 0-0"
        again = urllib.request.Request(f"{room}/events", headers={"Last-Event-ID": first["id"]})
        with urllib.request.urlopen(again, timeout=TIMEOUT_S) as events:
            assert read(events) == {"": "open"} and read(events) == second
        with pytest.raises(urllib.error.HTTPError, match="422"):
            post({"user": "Ann"})


@pytest.mark.needs("chromium")
def test_two_pages_chat_over_websockets(make_node: Callable[..., Node], repository: Path) -> None:
    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    handler = functools.partial(Files, directory=str(repository))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        thread = threading.Thread(target=files.serve_forever)
        thread.start()
        try:
            origin = f"http://127.0.0.1:{files.server_port}"
            node = make_node(classes=[CHAT], config={"ws": "127.0.0.1:0", "ws_origins": [origin]})
            place = f"{origin}/examples/page.html?room=lobby&node=ws://{node.ready['ws']}"
            with BlockingClient(node.redis_url) as client:
                client.publish("chat:lobby", json.dumps({"user": "Ann", "text": "from Redis"}))
            with chromium() as browser, tab(browser, origin) as ben, tab(browser, origin) as cid:
                for one in (ben, cid):
                    one.page.goto(place)
                    expect(one.page.locator("#state")).to_have_text("in lobby")
                    expect(one.page.get_by_text("Ann: from Redis")).to_be_visible()
                ben.page.get_by_label("Name").fill("Ben")
                ben.page.get_by_label("Message", exact=True).fill("<b>hello</b>")
                ben.page.get_by_role("button", name="Send").click()
                for one in (ben, cid):
                    expect(one.page.get_by_text("Ben: <b>hello</b>")).to_be_visible()
                    one.check()
        finally:
            files.shutdown()
            thread.join()


def test_a_device_sends_its_state_does_actions_and_leaves_a_will(
    make_node: Callable[..., Node], examples: Path, tmp_path: Path
) -> None:
    classes = tomllib.loads((examples.parent / "sample" / "hubsub.toml").read_text())["class"]
    node = make_node(classes=classes, config={"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0"})

    def rest(path: str, body: dict[str, str] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{node.http_url}/v1/devices/7{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def answers() -> list[str]:
        """Of all actions that have one."""
        actions = rest("/actions")["actions"]
        return sorted(action["answer"]["payload"] for action in actions if action["state"] == "acknowledged")

    host, port = node.mqtt
    command = (examples / "mqtt_device.py", "7", "--host", host, "--port", port, "--every", "3600")
    with Paho(node.mqtt, V5, "watcher") as watcher:
        watcher.subscribe(("devices/7/state", 1))
        with running(*command) as device:
            assert json.loads(watcher.next().payload) == {"state": "idle", "target": 20}
            until(lambda: rest("")["connection"])
            rest("/actions", {"name": "heat", "payload": "21.5"})
            assert line(device, "action: ") == "heat 21.5"
            assert json.loads(watcher.next().payload) == {"state": "heating", "target": 21.5}
            rest("/actions", {"name": "dance", "payload": ""})
            until(lambda: answers() == ["error: there is no such action", "ok"])
            device.kill()
            assert json.loads(watcher.next().payload) == {"state": "lost"}
        rest("/actions", {"name": "heat", "payload": "18"})
        with running(*command) as device:
            assert line(device, "action: ") == "heat 18", "it waited for the device"
            until(lambda: len(answers()) == 3)
            device.send_signal(signal.SIGINT)
            assert device.wait(TIMEOUT_S) == 0
        seen = [json.loads(watcher.next().payload)["state"] for _ in range(3)]
        assert sorted(seen[:2]) == ["heating", "idle"] and seen[2] == "off"


def test_the_tests_of_the_example_pass_in_a_directory_of_their_own(examples: Path, tmp_path: Path) -> None:
    shutil.copy(examples / "test_with_fixture.py", tmp_path)
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=4 * TIMEOUT_S, env=environment(), cwd=tmp_path
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
