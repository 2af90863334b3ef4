"""Waiting for a server, reports about it, and redirection to other servers."""

from __future__ import annotations

import itertools
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hubsub.errors import ElsewhereError, NotConnectedError
from hubsub.pipeline import wire
from hubsub.pipeline.listing import Hub
from hubsub.pipeline.options import Access
from hubsub.pipeline.wire import BackOff, Wire


class Clock:
    """Virtual time that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("says", [True, False])
def test_a_wait_is_told_at_once_and_each_quarter_of_a_minute(
    says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(), []
    monkeypatch.setattr(wire, "time", clock)
    monkeypatch.setattr(wire.LOG, "warning", lambda *args: told.append((clock.now, args[0] % args[1:])))
    back_off = BackOff(60.0, says)
    with pytest.raises(NotConnectedError):
        while True:
            back_off.wait(NotConnectedError("no server answers", "a:1"))
    assert 57 < clock.now <= 60
    if not says:
        assert told == []
        return
    assert len(told) == 4 and told[0][0] < 1.5
    assert all(15 <= after[0] - before[0] <= 17 for before, after in itertools.pairwise(told))
    assert told[0][1].startswith("no server answers: a:1; trying for 59 s more")


def test_a_server_that_is_away_for_a_moment_is_nothing_to_speak_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "time", Clock())
    back_off = BackOff(60.0, logs=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            back_off.wait(NotConnectedError("no server answers", "a:1"))
            back_off.renew()
    assert not caplog.records


class Node(ThreadingHTTPServer):
    """A server that answers with its own name, or redirects all requests to another one."""

    def __init__(self, home: Node | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.home, self.asked, self.bodies = home, list[str](), list[bytes]()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def __enter__(self) -> Node:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Node

    def do_GET(self) -> None:
        node = self.server
        node.asked.append(self.path)
        node.bodies.append(self.rfile.read(int(self.headers.get("content-length", "0"))))
        answer = b'{"offset": 7}'
        if node.home is not None:
            answer = b'{"code": "elsewhere", "message": "another node has it", "hint": null}'
            self.send_response(307)
            self.send_header("Location", f"http://{node.home.address}{self.path}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_GET

    def log_request(self, *args: object) -> None:
        pass


HUB = Hub(id=3, name="chat-2", earliest=1, end=9)


def test_a_request_goes_to_the_node_that_another_one_names() -> None:
    with Node() as home, Node(home) as edge, Wire(Access(servers=(edge.address,))) as asker:
        assert asker.offset_at(HUB, 5) == 7
        assert edge.asked == home.asked == ["/v1/hubs/3/offset?timestamp_us=5"]


def test_stages_of_a_query_go_where_its_first_one_went() -> None:
    with Node() as home, Node(home) as edge, Wire(Access(servers=(edge.address,))) as asker:
        names = [asker.stage("q", b"rows", b"t") for _ in range(3)]
        assert home.asked == [f"/v1/queries/q/stages/{name}?topic=t" for name in names]
        assert home.bodies == [b"rows"] * 3
        assert edge.asked == home.asked[:1], "it is asked once"


def test_nodes_that_name_each_other_are_no_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "time", Clock())
    with Node() as one, Node(one) as two, Wire(Access(servers=(one.address,), retry_s=1.0)) as asker:
        one.home = two
        with pytest.raises(ElsewhereError):
            asker.offset_at(HUB, 5)
        assert 1 < len(one.asked) == len(two.asked) < 10, "each is asked once in a round"
