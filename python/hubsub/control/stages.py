"""What a query's batches are, and how far one is: decisions only, no input and no output.

A batch is committed by one record that names its stages. Its rows are then moved, chunk by
chunk; after each a record says how far that is. The latest record of a query is all that is
known of it, and `Latest` is what it says. docs/protocol/stages.md has the whole.

Invariants: batches rise. A chunk is numbered room by room, without gaps, so a hub stores a row only
after those of its room before it: the rows of a room keep their order. Rows get other numbers only
when it is known that they were never stored under those they had.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hubsub.errors import BatchPassedError
from hubsub.names import producer_id

NEVER_STORED = ("sequence_passed", "sequence_too_old", "sequence_ahead", "disk_full")
"""Refusals that come only when the row is not in its hub's log under this number.

A hub that knows a later number of the same chunk and not this one would know it, had it been stored:
between the rows of one chunk there is less than a hub's window holds.
"""

Position = tuple[int, int]
"""Epoch and seq of a record in its room."""


class Attempt(NamedTuple):
    """The rows that one call of a task has staged."""

    name: str
    rows: int
    chunks: int
    first: Position
    """Where its first chunk stands; the others follow."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A committed batch on its way into its rooms."""

    batch: int
    commit: Position
    """The record that committed it; with the query's name it makes the producers of its rows."""
    attempts: tuple[Attempt, ...]
    attempt: int = 0
    """Which attempt the next chunk is of."""
    chunk: int = 0
    """Which of its chunks; those before are published."""
    left: tuple[int, ...] | None = None
    """What of it is not published yet, by place; None: all."""
    turn: int = 0
    """How often the chunk's rows were numbered anew."""
    of: tuple[int, ...] | None = None
    """What was numbered then, by place; None: all."""
    published: int = 0
    """Rows that are known to be; those of one chunk may be beyond what a record says."""
    is_whole: bool = False
    """Its records say all: that of its commit may be gone."""

    @property
    def rows(self) -> int:
        return sum(attempt.rows for attempt in self.attempts)

    @property
    def is_done(self) -> bool:
        return self.attempt == len(self.attempts)

    def producer(self, query: str) -> int:
        """Who numbers the chunk's rows: another one for each chunk of each commit, and each time they are numbered."""
        epoch, seq = self.commit
        return producer_id(f"{query}/{epoch}-{seq}/{self.attempt}/{self.chunk}/{self.turn}")

    def begun(self) -> "Move":
        """At the first chunk that there is."""
        move = self
        while not move.is_done and move.chunk >= move.attempts[move.attempt].chunks:
            move = replace(move, attempt=move.attempt + 1, chunk=0)
        return move

    def after(self, rows: int, refused: Iterable[tuple[int, str]]) -> "Move":
        """Behind a chunk that was published, as far as it was.

        Args:
            rows: Of the chunk.
            refused: Place and code of each that was not taken.
        """
        open_rows = list(refused)
        sent = rows if self.left is None else len(self.left)
        move = replace(self, published=self.published + sent - len(open_rows))
        if not open_rows:
            return replace(move, chunk=self.chunk + 1, left=None, turn=0, of=None).begun()
        left = tuple(row for row, _ in open_rows)
        if all(code in NEVER_STORED for _, code in open_rows):
            return replace(move, left=left, turn=self.turn + 1, of=left)
        # Of some it is not known: they come again under the number that they have.
        return replace(move, left=left)


End = Literal["published", "given up"]


@dataclass(frozen=True, kw_only=True)
class Latest:
    """What the latest record of a query says."""

    batch: int
    rows: int
    published: int
    """Of these, as far as it is known."""
    end: End | None
    """None: the batch is on its way."""
    move: Move | None
    """What is left of it; None: it has ended, or its commit is lost."""


def on_its_way(move: Move) -> Latest:
    """What is known of a batch that goes on from there."""
    return Latest(batch=move.batch, rows=move.rows, published=move.published, end=None, move=move)


Plan = Literal["begin", "finish", "finish, then begin", "repeated", "given up"]


def plan(latest: Latest | None, batch: int) -> Plan:
    """What a commit of a batch asks for.

    Raises:
        BatchPassedError: a later one is committed. Spark repeats its last batch and none before, so
            this is another query under the same name, or one whose checkpoint was removed.
    """
    if latest is None or (latest.end is not None and batch > latest.batch):
        return "begin"
    if batch < latest.batch:
        raise BatchPassedError(
            value=f"{batch} < {latest.batch}",
            hint="each query needs a name of its own, and a new one when its checkpoint is made anew",
        )
    if latest.end is None:
        return "finish" if batch == latest.batch else "finish, then begin"
    return "repeated" if latest.end == "published" else "given up"


# -- records --


def commit_record(batch: int, attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {"batch": batch, "attempts": [[a.name, a.rows, a.chunks, *a.first] for a in attempts]}


def progress_record(move: Move) -> dict[str, Any]:
    """How far a batch is; which attempts it has, the record of its commit says, unless that may be gone."""
    if move.is_done:
        return {"batch": move.batch, "done": move.rows}
    record = {
        "batch": move.batch,
        "rows": move.rows,
        "commit": list(move.commit),
        "at": [move.attempt, move.chunk],
        "left": None if move.left is None else list(move.left),
        "turn": move.turn,
        "of": None if move.of is None else list(move.of),
        "published": move.published,
    }
    if move.is_whole:
        record["attempts"] = commit_record(move.batch, move.attempts)["attempts"]
    return record


def given_up_record(latest: Latest) -> dict[str, Any]:
    """That a batch has ended with what is published of it: if that is all, like any other."""
    return {"batch": latest.batch, "done": latest.published, "given_up": latest.rows - latest.published}


def ended(record: Mapping[str, Any]) -> Latest | None:
    """What a record says of a batch that has ended; None: it has not."""
    if "done" not in record:
        return None
    done, left = record["done"], record.get("given_up", 0)
    end: End = "given up" if left else "published"
    return Latest(batch=record["batch"], rows=done + left, published=done, end=end, move=None)


def committed(record: Mapping[str, Any], position: Position) -> Move:
    """A batch as its commit record says, at its begin."""
    attempts = tuple(Attempt(name, rows, chunks, (e, s)) for name, rows, chunks, e, s in record["attempts"])
    return Move(batch=record["batch"], commit=position, attempts=attempts).begun()


def moved(record: Mapping[str, Any], of_commit: Move) -> Move:
    """The same, as far as a progress record says."""
    attempt, chunk = record["at"]
    left, of = record["left"], record.get("of")
    return replace(
        of_commit,
        attempt=attempt,
        chunk=chunk,
        left=None if left is None else tuple(left),
        turn=record.get("turn", 0),
        of=None if of is None else tuple(of),
        published=record["published"],
        is_whole="attempts" in record,
    )


class Space:
    """Bytes of the stages' log that must be kept: from the begin of the oldest stage of a batch that is moved.

    A log lets go of its oldest bytes when it is full, whatever they are. So what is written behind
    such a stage is bounded; a stage that is not committed may be lost, and its commit says so.
    """

    def __init__(self, written: int) -> None:
        self.written = written
        """Bytes of the log, those that are gone included."""
        self._begins: dict[str, int] = {}

    def hold(self, query: str, begins: Collection[int]) -> None:
        """A batch of stages that begin there is being moved; with none known all is kept."""
        self._begins[query] = min(begins, default=0)

    def hold_all(self, query: str) -> None:
        """Likewise, of stages that began nobody knows where, unless it is held already."""
        self._begins.setdefault(query, 0)

    def free(self, query: str) -> None:
        self._begins.pop(query, None)

    def has_room(self, size: int, size_max: int) -> bool:
        """Whether so many bytes may be written."""
        return not self._begins or self.written + size - min(self._begins.values()) <= size_max
