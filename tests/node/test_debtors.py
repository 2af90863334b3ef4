"""Sums over the clients of a shard: whoever has most of one that is too large is closed, and nobody else notices."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from clients.longpoll import Poller
from clients.mqtt import CONNACK, DISCONNECT, PINGRESP, V5, Wire, packet, text
from clients.raw import TIMEOUT_S, Connection, Frame, encode
from clients.servers import Server, until

from node.test_phoenix_frames import ANSWER, CONTINUATION, FIN, HEAD, HEARTBEAT, TEXT, Raw

Start = Callable[..., Server]

CLASSES = [
    {"name": "past", "match": ["past"], "history": {"messages": 100}},
    {"name": "live", "match": ["live"], "on_slow": "disconnect"},
]
TOLD = b"ERR max bytes of unfinished input reached, and yours was the most; hint: input_shard_bytes_max"
RECORDS = 96
RECORD = b"." * 64 * 1024
"""6 MiB of them together: more than a kernel takes for a peer that does not read."""


def owe(server: Server, stack: ExitStack, count: int) -> list[Connection]:
    """As many clients that ask for all of a history and read nothing."""
    with server.connect() as publisher:
        for _ in range(RECORDS):
            publisher.ask("PUBLISH", "past", RECORD)
    debtors = [stack.enter_context(server.connect(3, 4096)) for _ in range(count)]
    for debtor in debtors:
        debtor.command("HUBSUB", "HISTORY", "past")
    return debtors


def subscribe(server: Server, stack: ExitStack) -> tuple[Connection, int]:
    """A subscriber that reads late, and its id."""
    subscriber = stack.enter_context(server.connect(3, 4096))
    number = subscriber.ask("CLIENT", "ID")
    subscriber.ask("SUBSCRIBE", "live")
    assert isinstance(number, int)
    return subscriber, number


def waiting(server: Server, number: int) -> int:
    """Bytes that wait for a client."""
    with server.connect() as asker:
        (line,) = bytes(asker.ask("CLIENT", "LIST", "ID", number)).decode().splitlines()  # type: ignore[arg-type]
    return int(dict(field.split("=", 1) for field in line.split(" ") if "=" in field)["omem"])


def publish_until_some_wait(server: Server, number: int) -> int:
    """Publishes until the subscriber has records that its socket did not take, and some more; how many."""
    sent = 0
    with server.connect() as publisher:
        enough = False
        while not enough:
            enough = waiting(server, number) > 0
            publisher.send(
                b"".join(encode("PUBLISH", "live", b"%d " % n + b"." * 1000) for n in range(sent, sent + 200))
            )
            publisher.read_many(200)
            sent += 200
    return sent


def test_a_subscriber_with_a_byte_waiting_loses_nothing_beside_16_that_read_no_replies(start: Start) -> None:
    limits = {"output_bytes_max": "4MiB", "output_soft_bytes": 0, "output_shard_bytes_max": "4MiB"}
    server = start(1, limits=limits, classes=CLASSES)
    with ExitStack() as stack:
        subscriber, number = subscribe(server, stack)
        owe(server, stack, 16)
        until(lambda: server.metric("reply_bytes") > 4 << 20, "replies alone are above the sum of output")
        sent = publish_until_some_wait(server, number)
        for n in range(sent):
            assert subscriber.read().plain()[2].startswith(b"%d " % n)  # type: ignore[index]
        assert server.metric("slow_closed_total") == server.metric("reply_debtors_closed_total") == 0


def test_who_leaves_most_replies_unread_is_closed_and_nobody_else(start: Start) -> None:
    server = start(1, limits={"reply_shard_bytes_max": "4MiB"}, classes=CLASSES)
    with ExitStack() as stack:
        subscriber, number = subscribe(server, stack)
        debtors = owe(server, stack, 16)
        until(lambda: server.metric("reply_debtors_closed_total") == 16, "each alone has more")
        server.log_line("largest debtor closed", "unread replies")
        for debtor in debtors:
            debtor.close()
        sent = publish_until_some_wait(server, number)
        for n in range(sent):
            assert subscriber.read().plain()[2].startswith(b"%d " % n)  # type: ignore[index]
        until(lambda: server.metric("reply_bytes") == 0)
        assert server.metric("slow_closed_total") == 0


def test_who_has_most_unfinished_input_is_closed_and_nobody_else(start: Start) -> None:
    server = start(1, limits={"input_shard_bytes_max": 10_000})
    command = encode("ECHO", b"x" * 7_000)
    with ExitStack() as stack:
        large, small, least, other = (stack.enter_context(server.connect()) for _ in range(4))
        large.send(command[:6_000])
        small.send(command[:4_000])
        until(lambda: server.metric("input_bytes") == 10_000)
        assert other.ask("PING") == b"PONG"
        assert server.metric("input_debtors_closed_total") == 0, "just as much as there may be"
        least.send(command[:8])
        assert large.read_to_end() == [Frame("-", TOLD)]
        until(lambda: server.metric("input_bytes") == 4_008)
        assert server.metric("input_debtors_closed_total") == 1
        small.send(command[4_000:])
        assert small.read().value == b"x" * 7_000
        least.send(command[8:])
        assert least.read().value == b"x" * 7_000
        assert other.ask("PING") == b"PONG"
    server.log_line("largest debtor closed", "unfinished input")


def has_input(server: Server, size: int) -> bool:
    """Whether so much counts as unfinished input."""
    return server.metric("input_bytes") == size


def test_the_spare_room_of_a_buffer_counts_and_closes_nobody_who_is_alone(start: Start) -> None:
    server = start(1, limits={"input_shard_bytes_max": 10_000})
    command = encode("ECHO", b"x" * 9_900)
    with server.connect() as alone, server.connect() as other:
        sent = 0
        # A quarter more each time, and no more than the command has.
        for size, capacity in (
            (2_000, 2_000),
            (2_001, 2_500),
            (2_501, 3_125),
            (9_000, 9_000),
            (9_001, len(command)),
        ):
            alone.send(command[sent:size])
            sent = size
            until(partial(has_input, server, capacity), f"{size} bytes came")
        alone.send(command[sent:])
        assert alone.read().value == b"x" * 9_900
        until(lambda: server.metric("input_bytes") == 0)
        assert other.ask("PING") == b"PONG"
        assert server.metric("input_debtors_closed_total") == 0


def test_clients_that_pipeline_with_the_last_command_cut_count_with_its_bytes_alone(start: Start) -> None:
    server = start(1, limits={"input_shard_bytes_max": 200_000})
    command = encode("PUBLISH", "nobody", b"x" * 1_000)
    cut = 36
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(20)]
        for client in clients:
            client.send(command[:cut])
        until(partial(has_input, server, 20 * cut))
        for _ in range(3):
            for client in clients:
                client.send(command[cut:] + command * 63 + command[:cut])
                assert [frame.plain() for frame in client.read_many(64)] == [0] * 64
            until(partial(has_input, server, 20 * cut))
        assert server.metric("input_debtors_closed_total") == 0


def test_a_request_that_is_longer_than_all_unfinished_input_may_be_is_refused_as_too_long(
    start: Start,
) -> None:
    server = start(1, config={"ws": "127.0.0.1:0"}, limits={"input_shard_bytes_max": 10_000})
    head = "POST /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: a\r\nContent-Length: 9990\r\n\r\n"
    with Raw(server) as long:
        long.socket.sendall(head.encode())
        assert long.stream.readline().startswith(b"HTTP/1.1 ") and b'"status":413' in long.stream.read()
        assert server.metric("input_debtors_closed_total") == 0


@pytest.mark.parametrize("line", ["GET /mqtt HTTP/1.1", "GET /socket/longpoll HTTP/1.1"])
def test_the_beginning_of_a_request_is_unfinished_input(start: Start, line: str) -> None:
    server = start(1, config={"ws": "127.0.0.1:0"}, limits={"input_shard_bytes_max": 10_000})
    head = f"{line}\r\nHost: a\r\nX: ".encode() + b"x" * 8_000
    with Raw(server) as large, Raw(server) as small, server.connect() as other:
        large.socket.sendall(head[:6_000])
        small.socket.sendall(head[:4_000])
        until(lambda: server.metric("input_bytes") == 10_000)
        assert server.metric("input_debtors_closed_total") == 0, "just as much as there may be"
        other.send(encode("ECHO", b"x")[:8])
        answer = large.stream.read()
        assert answer.startswith(b"HTTP/1.1 503 ") and b"max bytes of unfinished input reached" in answer
        until(lambda: server.metric("input_bytes") == 4_008)
        assert server.metric("input_debtors_closed_total") == 1
        small.socket.sendall(
            b"\r\n" + b"".join(f"{name}: {of}\r\n".encode() for name, of in HEAD.items()) + b"\r\n"
        )
        assert small.stream.readline().startswith(b"HTTP/1.1 ")
        until(lambda: server.metric("input_bytes") == 8)


def test_what_a_paused_session_of_a_long_poll_was_posted_is_unfinished_input(start: Start) -> None:
    limits = {"input_shard_bytes_max": 40_000, "reply_bytes_max": 1_024}
    server = start(1, {"ws": "127.0.0.1:0"}, limits=limits)
    assert server.node is not None
    beat: list[Any] = [None, "1" * 200, "phoenix", "heartbeat", {}]
    with Poller(server.node.ws) as paused, server.connect() as other, ExitStack() as stack:
        # It fetches no answer: 64 KiB of them wait for it, then as much as a client may leave unread.
        for _ in range(2):
            assert paused.post(*[beat] * 100) == 200
        pauses = server.metric("pauses_total")
        while server.metric("pauses_total") == pauses:
            assert paused.post(beat) == 200
        assert server.metric("input_bytes") == 0
        line = json.dumps(beat).encode()
        body = b"\n".join([line] * 99)
        posted = stack.enter_context(socket.create_connection(server.node.ws, TIMEOUT_S))
        fields = f"Host: a\r\nContent-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
        target = f"/socket/longpoll?vsn=2.0.0&token={paused.token}"
        posted.sendall(f"POST {target} HTTP/1.1\r\n{fields}".encode() + body)
        # Each line is a frame, whose header has at most 8 bytes.
        until(lambda: len(body) < server.metric("input_bytes") <= len(body) + 99 * 8)
        assert server.metric("input_debtors_closed_total") == 0
        left = 40_001 - server.metric("input_bytes")
        assert left < len(body)
        other.send(encode("ECHO", b"x" * 30_000)[:left])
        assert b'{"status":410}' in posted.recv(65_536), "its session has gone"
        until(lambda: server.metric("input_bytes") == left)
        assert server.metric("input_debtors_closed_total") == 1
        assert paused.get() == {"status": 410}


def test_who_is_closed_with_more_under_way_is_told_why(start: Start) -> None:
    server = start(1, limits={"input_shard_bytes_max": "4MiB"})
    with server.connect() as large, server.connect() as small:
        small.send(encode("ECHO", b"x" * 500_000)[:400_000])
        until(lambda: server.metric("input_bytes") >= 400_000)
        # It continues to send while it is closed; the error must still reach it.
        sender = threading.Thread(target=send_all, args=(large, encode("ECHO", b"x" * 4_100_000) * 4))
        sender.start()
        assert large.read_to_end()[-1] == Frame("-", TOLD)
        sender.join()
        assert 400_000 <= server.metric("input_bytes") < 800_000, "its buffer is at most twice as large"
        assert server.metric("input_debtors_closed_total") == 1


def test_with_the_least_memory_a_node_starts_and_serves_a_message_of_a_mib(start: Start) -> None:
    server = start(2, config={"memory": "64MiB", "mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"})
    payload = b"x" * (1 << 20)
    with server.connect() as subscriber, server.connect() as publisher:
        subscriber.ask("SUBSCRIBE", "large")
        assert publisher.ask("PUBLISH", "large", payload) == 1
        assert subscriber.read().plain() == [b"message", b"large", payload]
        # With so little memory a shard's clients may have 2.5 MiB of unfinished input.
        publisher.send(encode("PUBLISH", "large", b"x" * (3 << 20))[:100])
        assert publisher.read_to_end() == [Frame("-", b"ERR Protocol error: invalid bulk length")]
    until(lambda: server.metric("input_bytes") == 0)
    assert server.metric("input_debtors_closed_total") == 0


def send_all(connection: Connection, data: bytes) -> None:
    """Sends as much as is taken."""
    with suppress(OSError):
        connection.send(data)


def test_an_mqtt_client_with_most_unfinished_input_is_told_so(start: Start) -> None:
    server = start(1, config={"mqtt": "127.0.0.1:0"}, limits={"input_shard_bytes_max": 2_000})
    assert server.node is not None
    with Wire(server.node.mqtt) as one, server.connect() as other:
        one.connect("one", V5)
        one.send(packet(0x30, text("t") + b"\0" + b"." * 1_900)[:1_800])
        until(lambda: server.metric("input_bytes") == 1_800)
        with server.connect() as small:
            small.send(encode("ECHO", b"x" * 300)[:201])
            end = one.read()
        assert (end.kind, end.body[0]) == (DISCONNECT, 0x97)
        until(lambda: server.metric("input_bytes") == 0)
        assert other.ask("PING") == b"PONG"


def test_a_message_of_a_browser_of_which_frames_lack_is_unfinished_input(start: Start) -> None:
    server = start(1, config={"ws": "127.0.0.1:0"}, limits={"input_shard_bytes_max": 2_000})
    with Raw(server) as large, Raw(server) as small, Raw(server) as least:
        assert large.ask() == small.ask() == least.ask() == 101
        for raw, size in ((large, 1_200), (small, 800)):
            raw.send(TEXT, b"[" + b" " * (size - 1))
        until(lambda: server.metric("input_bytes") == 2_000)
        assert server.metric("input_debtors_closed_total") == 0, "just as much as there may be"
        least.send(TEXT, b"[")
        assert large.closed() == 1013
        until(lambda: server.metric("input_bytes") == 801)
        small.send(FIN | CONTINUATION, HEARTBEAT[1:])
        assert small.frame() == (TEXT, ANSWER.encode())
        until(lambda: server.metric("input_bytes") == 1)


def test_commands_that_multi_queues_are_unfinished_input_until_they_are_executed_or_dropped(
    start: Start,
) -> None:
    server = start(1, limits={"input_shard_bytes_max": 10_000})
    with server.connect() as large, server.connect() as small:
        for end in ("EXEC", "DISCARD", "RESET"):
            large.ask("MULTI")
            large.ask("ECHO", "x" * 5_000)
            until(lambda: server.metric("input_bytes") == 5_000 + 4 + 2 * 16)
            large.ask(end)
            until(lambda: server.metric("input_bytes") == 0, end)
        large.ask("MULTI")
        assert large.call("NO_SUCH_COMMAND").kind == "-"
        assert large.call("EXEC").kind == "-"
        for connection, size in ((large, 6_000), (small, 4_000 - 72)):
            connection.ask("MULTI")
            connection.ask("ECHO", "x" * size)
        until(lambda: server.metric("input_bytes") == 10_000)
        assert server.metric("input_debtors_closed_total") == 0, "just as much as there may be"
        small.ask("PUBLISH", "t", "x")
        assert large.read_to_end() == [Frame("-", TOLD)]
        assert small.ask("EXEC") == [b"x" * (4_000 - 72), 0]
        until(lambda: server.metric("input_bytes") == 0)
        assert server.metric("input_debtors_closed_total") == 1


def test_who_goes_to_the_shard_of_its_session_takes_its_unfinished_input_along(start: Start) -> None:
    server = start(3, config={"mqtt": "127.0.0.1:0"})
    assert server.node is not None
    part = b"\x30\x7f\x00\x01t"
    said = packet(0x10, text("MQTT") + b"\x04\x00\x00\x00" + text("one")) + b"\xc0\x00" + part
    for _ in range(30):
        with Wire(server.node.mqtt) as one:
            one.send(said)
            assert [one.read().kind for _ in range(2)] == [CONNACK, PINGRESP]
    with Wire(server.node.mqtt) as one:
        one.send(said)
        assert [one.read().kind for _ in range(2)] == [CONNACK, PINGRESP]
        until(lambda: server.metric("input_bytes") == len(part), "what the last one has, and nothing else")


def test_records_that_an_mqtt_client_leaves_unread_are_no_replies(start: Start) -> None:
    server = start(1, config={"mqtt": "127.0.0.1:0"})
    assert server.node is not None
    with Wire(server.node.mqtt, receive_bytes=4096) as slow, server.connect() as publisher:
        slow.connect("slow", V5)
        # Its number makes each packet one of this client alone.
        assert slow.subscribe(("live", 0), properties=b"\x0b\x01") == [0]

        def waits() -> bool:
            for _ in range(100):
                publisher.ask("PUBLISH", "live", b"." * 1_000)
            return server.metric("output_bytes") > 0

        until(waits, "its socket takes no more")
        assert server.metric("reply_bytes") == 0
