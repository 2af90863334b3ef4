"""A table of plain Parquet files: a file belongs to it if the log of manifests lists it.

```
_manifests/00000000000000000007.json         commit 7: state, files added, paths removed
_manifests/00000000000000000007.whole.json   the table as it is after commit 7
date=2026-03-01/batch_id=12/part-….parquet   data; batch_id=-1 holds several batches
```

A commit atomically creates one small file under the next number. Each has the complete state, so a writer
reads only the last one. The files are those of the last `whole` and of the commits after it.

Two concurrent commits conflict, and the later one starts again from the new state: compaction can therefore
run beside the job that archives. Limit: object stores cannot refuse a second commit of the same number here;
the written file is only read back. Use a single writer per table there.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hubsub.errors import ArchiveDamagedError, ArchiveMismatchError
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile, Ranges, State

VERSION = 1
DIRECTORY = "_manifests"
WHOLE_EVERY = 64
"""Commits between two `whole`: the most that a reader reads and a writer lists."""
ATTEMPTS = 3
"""How often a reader starts again when files that it was about to read were swept."""
COMMITS = 8
"""Attempts of a writer: others commit in between, at most once per batch or per day's compaction."""

Change = Callable[[State], tuple[State, Iterable[DataFile], list[str]]]
"""From the previous state to the new one, with files added and paths removed."""


class ManifestTable:
    """A table of Parquet files and manifests."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def uri(self) -> str:
        return self.store.uri

    def state(self) -> State:
        return self._last()[1]

    def contents(self) -> tuple[State, list[DataFile]]:
        return self._contents()

    def _contents(self, last: int | None = None) -> tuple[State, list[DataFile]]:
        """State and files after a commit."""
        for _ in range(ATTEMPTS):
            commits, wholes = self._list(last)
            whole = max(wholes, default=None)
            names = [f"{whole:020d}.whole.json"] if whole is not None else []
            names += [f"{n:020d}.json" for n in commits if whole is None or n > whole]
            parts = [self._read(name) for name in names]
            if None in parts:
                continue
            found: dict[str, DataFile] = {}
            for part in parts:
                for path in part["removed"]:
                    found.pop(path, None)
                found |= {fields["path"]: DataFile(**fields) for fields in part["files"]}
            return State.decode(parts[-1]["state"]) if parts else State(), list(found.values())
        raise ArchiveDamagedError("manifests are gone while they were read", self.uri)

    def append(
        self,
        application: str,
        batch: int,
        files: Iterable[DataFile],
        ranges: Ranges,
        log: str | None = None,
        selection: Mapping[str, str] | None = None,
    ) -> None:
        files = list(files)
        self._commit(lambda state: (state.with_batch(application, batch, ranges, log, selection), files, []))

    def replace(self, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
        paths, new = [file.path for file in old], list(new)

        def change(state: State) -> tuple[State, Iterable[DataFile], list[str]]:
            if not {file.path for file in self.contents()[1]}.issuperset(paths):
                raise ArchiveMismatchError(
                    "files to be replaced are no part of the archive any more", self.uri
                )
            return state, new, paths

        self._commit(change)

    def sweep(self, older_than_s: float) -> int:
        """Removes data files that no manifest names, and manifests that the last `whole` includes."""
        found = list(self.store.list(recursive=True))
        ages = {path: age for path, _, age in found}
        commits, wholes = self._list()
        named = {file.path for file in self.contents()[1]}
        for number in commits:  # One of them may lack its `whole`: its writer was killed in between.
            name = f"{number:020d}.json"
            if ages.get(f"{DIRECTORY}/{name}", 0.0) < older_than_s:
                # A reader that started before it still needs them.
                named |= set((self._read(name) or {"removed": ()})["removed"])
        gone = []
        for path in (path for path, age in ages.items() if age >= older_than_s):
            if path.startswith(f"{DIRECTORY}/"):
                of = path.removeprefix(f"{DIRECTORY}/").partition(".")[0]
                if path.endswith(".part") or (wholes and of.isdigit() and int(of) < max(wholes)):
                    gone.append(path)
            elif path.endswith(".parquet") and path not in named:
                gone.append(path)
        return self.store.delete(gone)

    def _commit(self, change: Change) -> None:
        for _ in range(COMMITS):
            before, state = self._last()
            number = before + 1
            after, files, removed = change(state)
            body = {
                "version": VERSION,
                "state": after.encode(),
                "files": [vars(file) for file in files],
                "removed": removed,
            }
            if not self.store.create(f"{DIRECTORY}/{number:020d}.json", _json(body)):
                continue
            if number % WHOLE_EVERY == 0 or removed:
                body |= {"files": [vars(file) for file in self._contents(number)[1]], "removed": []}
                self.store.create(f"{DIRECTORY}/{number:020d}.whole.json", _json(body))
            return
        raise ArchiveMismatchError(
            "somebody else writes to the archive", self.uri, "let only one job write to it"
        )

    def _last(self) -> tuple[int, State]:
        """Number and state of the last commit; 0 and an empty one before the first."""
        commits, _ = self._list()
        if not commits:
            return 0, State()
        body = self._read(f"{commits[-1]:020d}.json")
        if body is None:
            raise ArchiveDamagedError("the last manifest is gone", self.uri)
        return commits[-1], State.decode(body["state"])

    def _list(self, last: int | None = None) -> tuple[list[int], list[int]]:
        """Numbers of the commits up to `last`, and of those that have a `whole`."""
        commits: list[int] = []
        wholes: list[int] = []
        for path, _, _ in self.store.list(DIRECTORY):
            name, _, ending = path.removeprefix(f"{DIRECTORY}/").partition(".")
            is_one = name.isdigit() and (last is None or int(name) <= last)
            if is_one and ending in ("json", "whole.json"):
                (commits if ending == "json" else wholes).append(int(name))
        return sorted(commits), wholes

    def _read(self, name: str) -> Any:
        """A manifest; None if it is gone."""
        data = self.store.read(f"{DIRECTORY}/{name}")
        if data is None:
            return None
        where = self.store.spark_uri(f"{DIRECTORY}/{name}")
        try:
            body = json.loads(data)
            version = body["version"]
        except (ValueError, KeyError, TypeError):
            raise ArchiveDamagedError("a manifest cannot be read", where) from None
        if version != VERSION:
            what = "the archive was written by another version"
            raise ArchiveDamagedError(what, f"{where}: {version}, this one reads {VERSION}")
        return body


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
