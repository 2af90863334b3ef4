"""Commits to the coordinator: all writes or none, as specified in docs/adr/0013-a-cluster.md.

Invariant: no commit exceeds what every backend accepts: etcd takes 128 operations and 1.5 MiB, ZooKeeper
packets of 1 MiB.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hubsub.coordination.base import OPERATIONS_MAX as OPERATIONS_MAX
from hubsub.coordination.base import Put as Put

CONTROLLER = "controller"
"""The key whose revision every write of the controller expects."""

COMMIT_BYTES_MAX = 512 << 10
"""Bytes of keys and values in one commit: half of what the most restrictive backend accepts, because that one
encodes them as base64."""


@dataclass(frozen=True, slots=True)
class Commit:
    """All writes or none, and only if every key of `expect` has the given revision; 0: the key does not exist."""

    expect: Mapping[str, int]
    writes: tuple[Put, ...]

    @property
    def operations(self) -> int:
        return len(self.expect) + len(self.writes)


@dataclass(frozen=True, slots=True)
class Change:
    """Writes that belong together, with what they expect; a commit holds one of them or more."""

    expect: Mapping[str, int]
    writes: tuple[Put, ...]


def packed(changes: Iterable[Change], controller_revision: int) -> Iterator[Commit]:
    """Packs changes into few commits, each change whole and in order.

    Args:
        changes: No two write the same key, two that expect a key expect the same revision, and none has more
            than `OPERATIONS_MAX - 1` operations.
        controller_revision: The revision of `controller` from the writer's own election.
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
