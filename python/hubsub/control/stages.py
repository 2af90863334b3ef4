"""State of a query's batches and their progress: decisions only, without input or output.

A batch is committed by one record that names its stages. Its rows are then moved chunk by chunk; after each
chunk a record holds the progress. The latest record of a query is its whole state, and `BatchState` represents
it. docs/protocol/stages.md has the details.

Invariants: batch numbers rise. A chunk is numbered room by room, without gaps, so a hub stores a row only
after the earlier rows of its room: the rows of a room keep their order. Rows get new numbers only when it is
certain that they were never stored under the old ones.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hubsub.errors import BatchPassedError
from hubsub.names import producer_id

NEVER_STORED = ("sequence_passed", "sequence_too_old", "sequence_ahead", "disk_full")
"""Refusals that occur only if the row is not in its hub's log under this number.

A hub that knows a later number of the same chunk would also know this one, had it been stored: a chunk is
smaller than a hub's window.
"""

Position = tuple[int, int]
"""Epoch and seq of a record in its room."""


class Attempt(NamedTuple):
    """The rows that one call of a task has staged."""

    name: str
    rows: int
    chunks: int
    first: Position
    """Position of its first chunk; the others follow."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A committed batch whose rows are being moved into their rooms."""

    batch: int
    commit: Position
    """Position of the commit record; with the query's name it determines the producers of its rows."""
    attempts: tuple[Attempt, ...]
    attempt: int = 0
    """Index of the attempt of the next chunk."""
    chunk: int = 0
    """Index of the next chunk in it; earlier ones are published."""
    left: tuple[int, ...] | None = None
    """Places of its rows that are not published yet; None: all."""
    turn: int = 0
    """How often the chunk's rows got new numbers."""
    of: tuple[int, ...] | None = None
    """Places of the rows that were numbered last; None: all."""
    published: int = 0
    """Rows known to be published; a crash may leave rows of one more chunk published."""
    is_whole: bool = False
    """Its records are self-contained: the commit record may be gone."""

    @property
    def rows(self) -> int:
        return sum(attempt.rows for attempt in self.attempts)

    @property
    def is_done(self) -> bool:
        return self.attempt == len(self.attempts)

    def producer(self, query: str) -> int:
        """Producer id of the chunk's rows: unique per chunk of a commit and per renumbering."""
        epoch, seq = self.commit
        return producer_id(f"{query}/{epoch}-{seq}/{self.attempt}/{self.chunk}/{self.turn}")

    def begun(self) -> "Move":
        """The move at its first existing chunk."""
        move = self
        while not move.is_done and move.chunk >= move.attempts[move.attempt].chunks:
            move = replace(move, attempt=move.attempt + 1, chunk=0)
        return move

    def after(self, rows: int, refused: Iterable[tuple[int, str]]) -> "Move":
        """The move after a chunk was published, completely or in part.

        Args:
            rows: Rows of the chunk.
            refused: Place and error code of each row that was refused.
        """
        open_rows = list(refused)
        sent = rows if self.left is None else len(self.left)
        move = replace(self, published=self.published + sent - len(open_rows))
        if not open_rows:
            return replace(move, chunk=self.chunk + 1, left=None, turn=0, of=None).begun()
        left = tuple(row for row, _ in open_rows)
        if all(code in NEVER_STORED for _, code in open_rows):
            return replace(move, left=left, turn=self.turn + 1, of=left)
        # For some rows the outcome is unknown: they are sent again under the same number.
        return replace(move, left=left)


End = Literal["published", "given up"]


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """Content of the latest record of a query."""

    batch: int
    rows: int
    published: int
    """Rows known to be published."""
    end: End | None
    """None: the batch is in flight."""
    move: Move | None
    """The rest of the batch; None: it has ended, or its commit record is lost."""


def in_flight(move: Move) -> BatchState:
    """State of a batch that continues from this move."""
    return BatchState(batch=move.batch, rows=move.rows, published=move.published, end=None, move=move)


Plan = Literal["begin", "finish", "finish, then begin", "repeated", "given up"]


def plan(latest: BatchState | None, batch: int) -> Plan:
    """The action for a commit of a batch.

    Raises:
        BatchPassedError: a later one is committed. Spark repeats only its last batch, so this is another
            query under the same name, or one whose checkpoint was removed.
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
    """Record of a batch's progress. The commit record has its attempts, unless that may be gone."""
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


def given_up_record(latest: BatchState) -> dict[str, Any]:
    """Record that ends a batch with the rows published so far; if these are all, like any other."""
    return {"batch": latest.batch, "done": latest.published, "given_up": latest.rows - latest.published}


def ended(record: Mapping[str, Any]) -> BatchState | None:
    """State of a batch whose record marks its end; None: it has not ended."""
    if "done" not in record:
        return None
    done, left = record["done"], record.get("given_up", 0)
    end: End = "given up" if left else "published"
    return BatchState(batch=record["batch"], rows=done + left, published=done, end=end, move=None)


def committed(record: Mapping[str, Any], position: Position) -> Move:
    """The beginning of a batch, from its commit record."""
    attempts = tuple(Attempt(name, rows, chunks, (e, s)) for name, rows, chunks, e, s in record["attempts"])
    return Move(batch=record["batch"], commit=position, attempts=attempts).begun()


def moved(record: Mapping[str, Any], of_commit: Move) -> Move:
    """The batch at the progress of a record."""
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


class RetainedSpace:
    """Bytes of the stages' log that must be retained: from the beginning of the oldest stage of a batch that
    is being moved.

    A full log removes its oldest bytes, whatever they are. The bytes written after such a stage are therefore
    bounded. An uncommitted stage may be lost, and its commit then fails.
    """

    def __init__(self, written: int) -> None:
        self.written = written
        """Bytes ever written to the log, including removed ones."""
        self._begins: dict[str, int] = {}

    def hold(self, query: str, begins: Collection[int]) -> None:
        """Retains the stages of a batch that begin at these places; with an empty list everything."""
        self._begins[query] = min(begins, default=0)

    def hold_all(self, query: str) -> None:
        """Retains everything for a batch with unknown stages, unless it is held already."""
        self._begins.setdefault(query, 0)

    def free(self, query: str) -> None:
        self._begins.pop(query, None)

    def has_room(self, size: int, size_max: int) -> bool:
        return not self._begins or self.written + size - min(self._begins.values()) <= size_max
