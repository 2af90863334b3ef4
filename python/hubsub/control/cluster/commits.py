"""What is asked of the coordinator: commits of all writes or none, as docs/adr/0013-a-cluster.md has them.

Invariant: no commit is larger than what every backend takes: etcd takes 128 operations and 1.5 MiB, ZooKeeper
packets of 1 MiB.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hubsub.coordination.base import OPERATIONS_MAX as OPERATIONS_MAX
from hubsub.coordination.base import Put as Put

CONTROLLER = "controller"
"""The key whose revision every write of the controller expects."""

COMMIT_BYTES_MAX = 512 << 10
"""Keys and values of one commit: half of what the tightest backend takes, which encodes them as base64."""


@dataclass(frozen=True, slots=True)
class Commit:
    """All writes or none, and only if every key of `expect` has the revision given; 0: it is not there."""

    expect: Mapping[str, int]
    writes: tuple[Put, ...]

    @property
    def operations(self) -> int:
        """Expectations and writes."""
        return len(self.expect) + len(self.writes)


@dataclass(frozen=True, slots=True)
class Change:
    """Writes that belong together, with what they expect; a commit holds one of them or more."""

    expect: Mapping[str, int]
    writes: tuple[Put, ...]


def packed(changes: Iterable[Change], controller_revision: int) -> Iterator[Commit]:
    """Few commits that hold all changes, each of them whole, in their order.

    Args:
        changes: No key is written by two of them, two expect the same of a key, and none has more than
            `OPERATIONS_MAX - 1` operations.
        controller_revision: The revision of `controller` that made the writer one.
    """
    expect: dict[str, int] = {}
    writes: list[Put] = []
    size = 0
    for change in changes:
        bytes_more = sum(len(w.key) + len(w.value) for w in change.writes)
        operations = 1 + len(expect) + len(writes) + len(change.expect) + len(change.writes)
        if writes and (operations > OPERATIONS_MAX or size + bytes_more > COMMIT_BYTES_MAX):
            yield Commit({CONTROLLER: controller_revision} | expect, tuple(writes))
            expect, writes, size = {}, [], 0
        expect.update(change.expect)
        writes += change.writes
        size += bytes_more
    if writes:
        yield Commit({CONTROLLER: controller_revision} | expect, tuple(writes))
