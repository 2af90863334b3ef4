"""A Delta table: executors write its files, the driver commits them as one transaction of (application, batch).

No JVM package is needed: delta-rs writes the log. Each commit has the state as its metadata under `hubsub`.
Other programs may optimise and vacuum the table; their commits are skipped.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hubsub.errors import ArchiveDamagedError, ArchiveMismatchError, PipelineError
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile, Ranges, State
from hubsub.pipeline.schema import arrow_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

METADATA = "hubsub"
HISTORY_STEP = 16
"""Latest commits searched first for the state; if it is not among them, all are."""
COMMITS = 8
"""Attempts of a writer: others commit in between, at most once per batch or per day's compaction."""

Change = Callable[["DeltaTable"], tuple[list[Any], "CommitProperties"]]
"""From the current table to the actions of a commit."""


class DeltaArchive:
    """A Delta table, partitioned by date."""

    def __init__(self, store: Store) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise PipelineError(
                "the package deltalake is missing", None, "pip install 'hubsub[spark]'"
            ) from None
        self.store = store

    @property
    def uri(self) -> str:
        return self.store.uri

    def state(self) -> State:
        return self._state(self._open())

    def contents(self) -> tuple[State, list[DataFile]]:
        table = self._open()
        return self._state(table), _files(table)

    def append(
        self,
        application: str,
        batch: int,
        files: Iterable[DataFile],
        ranges: Ranges,
        log: str | None = None,
        selection: Mapping[str, str] | None = None,
    ) -> None:
        from deltalake import Transaction

        transaction = Transaction(f"hubsub:{application}", batch)
        added = [_add(file, True) for file in files]

        def change(table: "DeltaTable") -> tuple[list[Any], "CommitProperties"]:
            state = self._state(table).with_batch(application, batch, ranges, log, selection)
            return added, _properties(state, [transaction])

        self._commit(change)

    def replace(self, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
        from deltalake.transaction import RemoveAction

        old, added = list(old), [_add(file, False) for file in new]

        def change(table: "DeltaTable") -> tuple[list[Any], "CommitProperties"]:
            if not {file.path for file in _files(table)}.issuperset(file.path for file in old):
                what = "files to be replaced are no part of the archive any more"
                raise ArchiveMismatchError(what, self.uri)
            now = _now_ms()
            removed = [RemoveAction(file.path, False, now, file.bytes, {"date": file.date}) for file in old]
            return [*removed, *added], _properties(self._state(table), [])

        self._commit(change)

    def sweep(self, older_than_s: float) -> int:
        """Removes files that left the table this long ago, in whole hours, and files that no commit ever named."""
        table = self._open()
        if table is None:
            return 0
        hours = math.ceil(older_than_s / 3600)
        found = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        return self.store.delete([path for path in found if path.endswith(".parquet")])

    def _commit(self, change: Change) -> None:
        from deltalake.exceptions import CommitFailedError

        lost: Exception | None = None
        for _ in range(COMMITS):
            table = self._open() or self._create()
            actions, properties = change(table)
            try:
                table.create_write_transaction(
                    actions, "append", _schema(), partition_by=["date"], commit_properties=properties
                )
                return
            except CommitFailedError as error:
                lost = error
        raise ArchiveMismatchError(
            "somebody else writes to the archive", f"{self.uri} ({lost})", "let only one job write to it"
        )

    def _open(self) -> "DeltaTable | None":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.store.object_uri)
        except TableNotFoundError:
            return None

    def _create(self) -> "DeltaTable":
        from deltalake import DeltaTable

        return DeltaTable.create(self.store.object_uri, schema=_schema(), partition_by=["date"])

    def _state(self, table: "DeltaTable | None") -> State:
        if table is None:
            return State()
        for limit in (HISTORY_STEP, None):
            for commit in table.history(limit):
                if METADATA in commit:
                    return State.decode(json.loads(commit[METADATA]))
        if table.version() == 0:
            return State()
        raise ArchiveDamagedError("the Delta table has no offsets of ours in its history", self.uri)


def _files(table: "DeltaTable | None") -> list[DataFile]:
    if table is None:
        return []
    actions = table.get_add_actions(flatten=True)
    names = ("path", "partition.date", "num_records", "size_bytes")
    columns = [actions.column(name).to_pylist() for name in names]
    return [DataFile(path, str(day), rows, size) for path, day, rows, size in zip(*columns, strict=True)]


def _schema() -> Any:
    import pyarrow as pa
    from deltalake import Schema

    return Schema.from_arrow(arrow_schema().append(pa.field("date", pa.date32())))


def _properties(state: State, transactions: list[Any]) -> "CommitProperties":
    from deltalake import CommitProperties

    # A commit that lost a race is not repeated: it would carry an old state.
    return CommitProperties({METADATA: json.dumps(state.encode())}, 0, transactions)


def _add(file: DataFile, data_change: bool) -> Any:
    from deltalake.transaction import AddAction

    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.bytes, {"date": file.date}, _now_ms(), data_change, stats)


def _now_ms() -> int:
    return int(time.time() * 1_000)
