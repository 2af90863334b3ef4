"""State of a replay in its checkpoint: its position, in a few small files.

    archive.json      the archive's offsets when the replay began: later records are not replayed
    slices/N          slice N is planned: its content is fixed from here on
    done/N            slice N is published

Invariant: a slice is planned before anything of it is published, and done when all of it is. After a kill the
next run therefore publishes the same records under the same number, which the node knows; later slices may be
planned differently. Files of slices before the last ones are removed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hubsub.errors import ArchiveMismatchError
from hubsub.pipeline.archive.store import Store

ARCHIVE, PLANNED, DONE = "archive.json", "slices", "done"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Records that are published as one batch."""

    number: int
    begin_us: int
    end_us: int
    """First microsecond of the archive's time after the slice."""
    rows: int
    before: int
    """Records of all slices before it."""

    @property
    def records(self) -> int:
        """Records published once this slice is."""
        return self.before + self.rows


class SliceLog:
    def __init__(self, checkpoint: Store) -> None:
        self._store = checkpoint
        self.done = self._last(DONE)
        """The last published one."""
        planned = self._last(PLANNED)
        known = -1 if self.done is None else self.done.number
        self.planned = planned if planned is not None and planned.number > known else None
        """One that was planned and perhaps published."""

    def archived(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """The archive's offsets at the replay's first run; the given ones, if this is it."""
        text = json.dumps({str(hub): offset for hub, offset in sorted(offsets.items())})
        self._store.create(ARCHIVE, text.encode())
        stored = self._store.read(ARCHIVE) or b"{}"
        return {int(hub): offset for hub, offset in json.loads(stored).items()}

    def plan(self, piece: Slice) -> None:
        """Records a slice before it is published.

        Raises:
            ArchiveMismatchError: another process did.
        """
        if not self._store.create(f"{PLANNED}/{piece.number}", _encode(piece)):
            where = self._store.spark_uri(f"{PLANNED}/{piece.number}")
            raise ArchiveMismatchError("another replay uses this checkpoint", where, "let only one run")
        self.planned = piece

    def finish(self, piece: Slice) -> None:
        """Records that a slice is published; removes the ones before it."""
        self._store.create(f"{DONE}/{piece.number}", _encode(piece))
        old = [f"{PLANNED}/{piece.number}"]
        old += [] if self.done is None else [f"{DONE}/{self.done.number}"]
        self._store.delete(old)
        self.done, self.planned = piece, None

    def _last(self, directory: str) -> Slice | None:
        names = [path.rpartition("/")[2] for path, _, _ in self._store.list(directory)]
        number = max((int(name) for name in names if name.isdecimal()), default=None)
        data = None if number is None else self._store.read(f"{directory}/{number}")
        if data is None:
            return None
        try:
            return Slice(**json.loads(data))
        except (ValueError, TypeError):
            where = self._store.spark_uri(f"{directory}/{number}")
            raise ArchiveMismatchError("this cannot be read", where) from None


def _encode(piece: Slice) -> bytes:
    return json.dumps(asdict(piece)).encode()
