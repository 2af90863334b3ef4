"""A Delta table: executors write its files, the driver commits them as one transaction of (application, batch).

No JVM package is needed: delta-rs writes the log. The state goes with each commit, as its metadata under
`hubsub`; a table may be optimised and vacuumed by others, whose commits are passed over.
"""

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hubsub.errors import ArchiveDamagedError, ArchiveMismatchError, PipelineError
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile, Ranges, State
from hubsub.pipeline.schema import arrow_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

METADATA = "hubsub"
HISTORY_STEP = 16
"""Commits that are looked at first for the state; all, if it is not among them."""


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
        """Its root, as Spark takes it."""
        return self.store.uri

    def state(self) -> State:
        """What it holds now."""
        return self._state(self._open())

    def contents(self) -> tuple[State, list[DataFile]]:
        """State and files of the table's latest version."""
        table = self._open()
        return self._state(table), _files(table)

    def append(
        self, application: str, batch: int, files: Iterable[DataFile], ranges: Ranges, log: str | None = None
    ) -> None:
        """Commits a batch."""
        from deltalake import Transaction

        table = self._open() or self._create()
        state = self._state(table).with_batch(application, batch, ranges, log)
        transaction = Transaction(f"hubsub:{application}", batch)
        self._commit(table, [_add(file, True) for file in files], _properties(state, [transaction]))

    def replace(self, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
        """Commits the same records in other files."""
        from deltalake.transaction import RemoveAction

        table = self._open()
        old = list(old)
        there = {file.path for file in _files(table)}
        if table is None or not there.issuperset(file.path for file in old):
            raise ArchiveMismatchError("files to be replaced are no part of the archive any more", self.uri)
        removes = [RemoveAction(file.path, False, _now_ms(), file.bytes, {"date": file.date}) for file in old]
        actions = [*removes, *(_add(file, False) for file in new)]
        self._commit(table, actions, _properties(self._state(table), []))

    def sweep(self, older_than_s: float) -> int:
        """Removes files that are no part of it; a reader of an older version of the table loses them too."""
        table = self._open()
        if table is None:
            return 0
        named = {file.path for file in _files(table)}
        found = self.store.list(recursive=True)
        gone = [path for path, _, age in found if path.endswith(".parquet") and age >= older_than_s]
        return self.store.delete([p for p in gone if p not in named and not p.startswith("_delta_log/")])

    def _commit(self, table: "DeltaTable", actions: list[Any], properties: "CommitProperties") -> None:
        from deltalake.exceptions import CommitFailedError

        try:
            table.create_write_transaction(
                actions, "append", _schema(), partition_by=["date"], commit_properties=properties
            )
        except CommitFailedError as error:
            raise ArchiveMismatchError(
                "somebody else writes to the archive", f"{self.uri} ({error})", "let only one job write to it"
            ) from None

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

    # A commit that lost a race is not tried again: the state that it carries would be an old one.
    return CommitProperties({METADATA: json.dumps(state.encode())}, 0, transactions)


def _add(file: DataFile, data_change: bool) -> Any:
    from deltalake.transaction import AddAction

    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.bytes, {"date": file.date}, _now_ms(), data_change, stats)


def _now_ms() -> int:
    return int(time.time() * 1_000)
