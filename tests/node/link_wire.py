"""A hand-written dialer of links, for frames that no node sends. The frames are those of
docs/protocol/link.md."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from typing import NamedTuple

from hubsub.config import split_address
from node.linked import SECRET, WAIT_S

HELLO, CHALLENGE, PROOF, WELCOME, REFUSE = 1, 2, 3, 4, 5
BYE, CREDIT = 8, 9

REFUSALS = {
    1: "stranger",
    2: "other_cluster",
    3: "no_common_version",
    4: "wrong_secret",
    5: "duplicate_node",
    6: "same_node",
    7: "late",
    8: "other_node",
    9: "wrong_side",
    10: "no_such_link",
    11: "stopping",
}


class Frame(NamedTuple):
    code: int
    body: bytes
    raw: bytes


def text(value: str) -> bytes:
    data = value.encode()
    assert len(data) < 128
    return bytes([len(data)]) + data


def frame(code: int, body: bytes) -> bytes:
    return struct.pack("<IB", 1 + len(body), code) + body


class Dialer:
    """A connection to a node's link listener."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(split_address(address), timeout=WAIT_S)

    def hello(
        self,
        node: str = "a",
        *,
        cluster: str = "test",
        incarnation: int = 1,
        shards: int = 1,
        link: int = 0,
        versions: tuple[int, int] = (1, 1),
    ) -> bytes:
        head = b"HSLK" + struct.pack("<HH", *versions) + text(cluster) + text(node)
        tail = struct.pack("<QHH", incarnation, shards, link) + bytes(32)
        return frame(HELLO, head + tail)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> Frame | None:
        """The next frame; None at the end."""
        head = self._exactly(4)
        if head is None:
            return None
        body = self._exactly(struct.unpack("<I", head)[0])
        assert body is not None, "a whole frame"
        return Frame(body[0], body[1:], head + body)

    def prove(self, hello: bytes, secret: str = SECRET) -> None:
        """Performs the handshake up to the proof."""
        self.send(hello)
        challenge = self.frame()
        assert challenge is not None and challenge.code == CHALLENGE, challenge
        said = b"hubsub link 1 dialer\0" + hello + challenge.raw
        self.send(frame(PROOF, hmac.digest(secret.encode(), said, hashlib.sha256)))

    def refusal(self) -> tuple[str, str]:
        """The refusal's code and text; asserts that the connection then ends."""
        refuse = self.frame()
        assert refuse is not None and refuse.code == REFUSE, refuse
        assert self.frame() is None
        return REFUSALS[refuse.body[0]], refuse.body[2:].decode(errors="replace")

    def goodbye(self) -> str:
        """The text of the goodbye frame, after any other frames; asserts that the connection then ends."""
        while (came := self.frame()) is not None and came.code != BYE:
            pass
        assert came is not None, "an end without a goodbye"
        assert self.frame() is None
        return came.body[2:].decode()

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                some = self.socket.recv(count - len(data))
            except ConnectionResetError:
                some = b""
            if not some:
                assert not data, "an end inside a frame"
                return None
            data += some
        return data
