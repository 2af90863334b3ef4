"""The interface of an archive's table, for all formats.

A table is a set of data files and a `State`; both change together, in one atomic commit. Another format, such
as Iceberg, is one more class with these methods.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hubsub.errors import ArchiveMismatchError, OtherLogError

Ranges = Mapping[int, tuple[int, int]]
"""Hub to its first and last offset."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file.

    Args:
        path: Below the table's root.
        date: Day of its records' timestamps in UTC, as `2026-03-01`.
        rows: Number of records.
        bytes: Its size.
    """

    path: str
    date: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Batch:
    """The last batch of an application: its number and the ranges of its records."""

    number: int
    ranges: Ranges


@dataclass(frozen=True)
class State:
    """State of a table.

    Args:
        offsets: Hub to its first offset that is not archived; all earlier records are, from the first one on.
        batches: Application to its last batch. An application is one checkpoint: it numbers its batches.
        log: Identity of the log that the offsets belong to; None if unknown.
        selection: Options of the source that select rooms; empty: all. None if unknown.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    batches: Mapping[str, Batch] = field(default_factory=dict)
    log: str | None = None
    selection: Mapping[str, str] | None = None

    def with_batch(
        self,
        application: str,
        batch: int,
        ranges: Ranges,
        log: str | None = None,
        selection: Mapping[str, str] | None = None,
    ) -> "State":
        """The state after a batch of some rooms of a log.

        Args:
            application: Name of the checkpoint.
            batch: Number of the batch.
            ranges: Offsets of its records.
            log: Identity of the log; None if unknown.
            selection: Options that select rooms; None if unknown.

        Raises:
            OtherLogError: the archive is of another log.
            ArchiveMismatchError: the archive is of other rooms, records of the batch are archived already, or
                its number is an old one.
        """
        self.check_log(log)
        self.check_selection(selection)
        last = self.batches.get(application)
        if last is not None and batch <= last.number:
            raise ArchiveMismatchError(
                "the archive has a later batch of this application",
                f"{application}: batch {batch} after {last.number}",
                "give the checkpoint that the archive was written with, or another application",
            )
        for hub, (first, _) in ranges.items():
            if first < self.offsets.get(hub, first):
                raise ArchiveMismatchError(
                    "these records are archived already",
                    f"hub {hub}, from offset {first}; the archive goes to {self.offsets[hub]}",
                    "begin a new checkpoint at the archive's offsets, or archive to another place",
                )
        ends = {hub: last + 1 for hub, (_, last) in ranges.items()}
        return replace(
            self,
            offsets={**self.offsets, **ends},
            batches={**self.batches, application: Batch(batch, dict(ranges))},
            log=log or self.log,
            selection=self.selection if selection is None else dict(selection),
        )

    def check_log(self, log: str | None) -> None:
        """Raises OtherLogError if both logs are known and differ: offsets mean nothing in another log."""
        if log is not None and self.log is not None and log != self.log:
            hint = "ask the servers that it was archived from, or archive to another place"
            raise OtherLogError("the archive is of another log", f"{self.log}, the servers have {log}", hint)

    def check_selection(self, selection: Mapping[str, str] | None) -> None:
        """Raises ArchiveMismatchError if both are known and differ: offsets would skip records of other rooms."""
        if selection is not None and self.selection is not None and dict(selection) != dict(self.selection):
            was, asked = (
                ", ".join(f"{name} {value}" for name, value in sorted(some.items())) or "all rooms"
                for some in (self.selection, selection)
            )
            hint = "archive them to another place, with another checkpoint"
            raise ArchiveMismatchError("the archive is of other rooms", f"{was}; asked for: {asked}", hint)

    def encode(self) -> dict[str, Any]:
        """The state as JSON, where keys are text."""
        batches = {
            name: {"batch": batch.number, "ranges": {str(hub): list(r) for hub, r in batch.ranges.items()}}
            for name, batch in self.batches.items()
        }
        offsets = {str(hub): offset for hub, offset in self.offsets.items()}
        selection = None if self.selection is None else dict(self.selection)
        return {"log": self.log, "selection": selection, "offsets": offsets, "batches": batches}

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> "State":
        batches = {
            name: Batch(b["batch"], {int(hub): (first, last) for hub, (first, last) in b["ranges"].items()})
            for name, b in fields["batches"].items()
        }
        offsets = {int(hub): offset for hub, offset in fields["offsets"].items()}
        return cls(offsets, batches, fields["log"], fields["selection"])


class Table(Protocol):
    """A table at a URI."""

    @property
    def uri(self) -> str:
        """Its root, in Spark's form."""

    def state(self) -> State:
        """Its current state; an empty one if there is no table yet."""

    def contents(self) -> tuple[State, list[DataFile]]:
        """Its current state and files, both of the same moment."""

    def append(
        self,
        application: str,
        batch: int,
        files: Iterable[DataFile],
        ranges: Ranges,
        log: str | None = None,
        selection: Mapping[str, str] | None = None,
    ) -> None:
        """Adds the files of a batch to the table, and the batch to its state, atomically.

        Args:
            application: Name of the checkpoint.
            batch: Number of the batch.
            files: Files of the batch.
            ranges: Offsets of its records.
            log: Identity of the log; None if unknown.
            selection: Options that select rooms; None if unknown.

        Raises:
            OtherLogError, ArchiveMismatchError: as `State.with_batch`.
            ArchiveMismatchError: also after a concurrent commit by another writer.
        """

    def replace(self, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
        """Replaces files by others that hold the same records; the state does not change."""

    def sweep(self, older_than_s: float) -> int:
        """Removes files that do not belong to the table and are older than that; returns how many."""
