"""Subscribers that check a room's guarantees: each record once, in one order, and a gap notification for each
gap.

Two consecutive records have consecutive positions, or a gap notification in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from clients.raw import Connection


@dataclass(frozen=True)
class Position:
    epoch: str
    seq: int

    @classmethod
    def of(cls, data: object) -> Self:
        assert isinstance(data, bytes)
        epoch, _, seq = data.decode().partition("-")
        return cls(epoch, int(seq))


@dataclass(frozen=True)
class Heard:
    """A record, or a gap (`payload` is None; `position` is its end)."""

    payload: str | None
    position: Position


class Witness:
    """Subscribes to rooms on a node, with positions; the caller closes `client`."""

    def __init__(self, client: Connection, *rooms: str) -> None:
        self.client = client
        self.heard: dict[str, list[Heard]] = {room: [] for room in rooms}
        assert client.ask("HUBSUB", "POSITIONS", "ON") == b"OK"
        self._confirmed: set[str] = set()
        for room in rooms:
            client.command("SUBSCRIBE", room)
        while len(self._confirmed) < len(rooms):
            self.read()

    def read(self) -> str:
        """Reads the next push; returns its room."""
        push = self.client.read().plain()
        assert isinstance(push, list), push
        room = push[1].decode()
        match push[0]:
            case b"message":
                self.heard[room].append(Heard(push[2].decode(), Position.of(push[3])))
            case b"subscribe":
                self._confirmed.add(room)
            case b"gap":
                self.heard[room].append(Heard(None, Position.of(push[3])))
            case other:
                raise AssertionError(f"no such push is due: {other!r}")
        return room

    def read_to(self, payload: str) -> None:
        """Reads until this is the last record of each room."""
        while not all(heard and heard[-1].payload == payload for heard in self.heard.values()):
            self.read()

    def payloads(self, room: str) -> list[str]:
        return [heard.payload for heard in self.heard[room] if heard.payload is not None]

    def gaps(self, room: str) -> int:
        return sum(heard.payload is None for heard in self.heard[room])

    def epochs(self, room: str) -> list[str]:
        """Epochs in the order of their records; an epoch that is interrupted by another appears again."""
        epochs: list[str] = []
        for heard in self.heard[room]:
            if heard.payload is not None and epochs[-1:] != [heard.position.epoch]:
                epochs.append(heard.position.epoch)
        return epochs

    def check(self) -> None:
        """Checks that nothing is duplicated or reordered, or missing without a gap notification."""
        for room, heard in self.heard.items():
            payloads = self.payloads(room)
            assert len(payloads) == len(set(payloads)), f"{room}: doubled"
            epochs = self.epochs(room)
            assert len(epochs) == len(set(epochs)), f"{room}: a life that was over goes on: {epochs}"
            last: Position | None = None
            is_told = False
            for item in heard:
                if item.payload is None:
                    is_told = True
                    continue
                at = item.position
                if last is not None and not is_told:
                    # A complete epoch ends without a gap notification; other checks look for acknowledged
                    # records.
                    is_next_life = at.epoch != last.epoch and at.seq == 1
                    is_next = at == Position(last.epoch, last.seq + 1)
                    assert is_next or is_next_life, f"{room}: {last} then {at}, untold"
                elif last is not None and at.epoch == last.epoch:
                    assert at.seq > last.seq, f"{room}: {last} then {at}"
                last, is_told = at, False
