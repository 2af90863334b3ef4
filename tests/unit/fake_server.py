"""A small HubSub server for the client's tests: one room log per topic in memory, and connections that can be
cut.

It answers HELLO, PING, PUBLISH, HUBSUB POSITIONS|SUBSCRIBE|HISTORY|LOCATE and PSUBSCRIBE. It accepts the
commands in `silent` and never replies to them.
"""

import asyncio
import contextlib
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

from hubsub.client.resp import INCOMPLETE, Decoder


def bulk(value: bytes | int | None) -> bytes:
    if value is None:
        return b"_\r\n"
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%s\r\n" % (len(value), value)


def array(*values: Any, head: bytes = b"*") -> bytes:
    return (
        head + b"%d\r\n" % len(values) + b"".join(v if isinstance(v, bytearray) else bulk(v) for v in values)
    )


class FakeServer:
    def __init__(self) -> None:
        self.epoch = 7
        self.forgotten = 0
        """Seq of the newest record that is no longer readable."""
        self.unrecovered: set[bytes] = set()
        """Positions from which a subscription does not recover."""
        self.log: dict[bytes, list[bytes]] = defaultdict(list)
        self.silent: set[bytes] = set()
        self.refuse: set[bytes] = set()
        self.deaf = asyncio.Event()
        """If set, the server stops reading."""
        self.refuse_greeting: bytes | None = None
        self.commands: list[list[bytes]] = []
        self.gone = asyncio.Event()
        self.came = asyncio.Condition()
        self.writers: dict[asyncio.StreamWriter, set[bytes]] = {}

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        self.gone.set()
        self.cut()
        await self.server.wait_closed()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Aborts all connections, without a regular close."""
        for writer in list(self.writers):
            writer.transport.abort()

    async def seen(self, *command: bytes, count: int = 1) -> None:
        """Waits until the command has arrived `count` times."""
        async with self.came:
            await self.came.wait_for(lambda: self.commands.count(list(command)) >= count)

    def position(self, seq: int) -> bytes:
        return b"%d-%d" % (self.epoch, seq)

    def publish(self, topic: bytes, payload: bytes) -> int:
        log = self.log[topic]
        log.append(payload)
        receivers = [w for w, topics in self.writers.items() if topic in topics]
        for writer in receivers:
            writer.write(array(b"message", topic, payload, self.position(len(log)), head=b">"))
        return len(receivers)

    def push(self, *values: Any) -> None:
        for writer in self.writers:
            writer.write(array(*values, head=b">"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers[writer] = set()
        decoder = Decoder()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                decoder.feed(data)
                if self.deaf.is_set():
                    await self.gone.wait()
                while (command := decoder.next()) is not INCOMPLETE:
                    if command[0] not in self.silent:
                        writer.write(self._answer(writer, command))
                    async with self.came:
                        self.commands.append(command)
                        self.came.notify_all()
        del self.writers[writer]
        writer.close()

    def _answer(self, writer: asyncio.StreamWriter, command: list[bytes]) -> bytes:
        if command[0] in self.refuse:
            return b"-ERR refused\r\n"
        match command:
            case [b"HELLO", *_]:
                return self.refuse_greeting or b"%1\r\n+server\r\n+redis\r\n"
            case [b"PING"]:
                return b"+PONG\r\n"
            case [b"PUBLISH", topic, payload]:
                return bulk(self.publish(topic, payload))
            case [b"HUBSUB", b"POSITIONS", b"ON"]:
                return b"+OK\r\n"
            case [b"HUBSUB", b"LOCATE", _]:
                return array(bytearray(array(b"one", b"127.0.0.1:1")))
            case [b"HUBSUB", b"HISTORY", room, b"COUNT", count, *after]:
                return self._history(room, int(count), after)
            case [b"HUBSUB", b"SUBSCRIBE", topic, kind, where]:
                return self._subscribe(writer, topic, kind, where)
            case [b"PSUBSCRIBE", *patterns]:
                rows = (array(b"psubscribe", p, i, head=b">") for i, p in enumerate(patterns, 1))
                return b"".join(rows)
        return b"-ERR unknown command '%s'\r\n" % command[0]

    def _history(self, room: bytes, count: int, after: list[bytes]) -> bytes:
        log = self.log[room]
        first = max(0, len(log) - count)
        if after:
            epoch, _, seq = after[1].partition(b"-")
            if int(epoch) != self.epoch:
                return b"-NOTRECOVERED unknown epoch, history starts at %s\r\n" % self.position(1)
            first = int(seq)
        rows = [
            bytearray(array(self.position(i + 1), 1_000 + i, room, b"me", log[i]))
            for i in range(first, min(len(log), first + count))
        ]
        return array(*rows)

    def _subscribe(self, writer: asyncio.StreamWriter, topic: bytes, kind: bytes, where: bytes) -> bytes:
        log, recovered = self.log[topic], 1
        first = len(log)
        if kind == b"LAST":
            first = max(0, len(log) - int(where))
        elif kind == b"FROM":
            epoch, _, seq = where.partition(b"-")
            is_known = int(epoch) == self.epoch
            recovered = int(is_known and int(seq) >= self.forgotten and where not in self.unrecovered)
            first = max(int(seq), self.forgotten) if is_known else len(log)
        self.writers[writer].add(topic)
        frames = [array(b"subscribe", topic, 1, self.position(len(log)), recovered, head=b">")]
        frames += [
            array(b"message", topic, log[i], self.position(i + 1), head=b">") for i in range(first, len(log))
        ]
        return b"".join(frames)
