"""Errors of starting and running a node: configuration, data directory, shards."""

from collections.abc import Sequence
from typing import NamedTuple

from hubsub.errors.base import HubSubError, without_secrets


class Problem(NamedTuple):
    """One error in the configuration."""

    key: str
    value: object
    reason: str
    hint: str | None = None

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, str) and "://" in value:
            value = without_secrets(value)
        line = f"{self.key}: {self.reason}" + ("" if value is None else f": {value!r}")
        return line if self.hint is None else f"{line}\n  hint: {self.hint}"


class ConfigError(HubSubError, code="config", status=400):
    """The configuration cannot be used; lists all errors in it."""

    words = "bad configuration"

    def __init__(self, problems: Sequence[Problem], file: object = None) -> None:
        super().__init__()
        self.problems = tuple(problems)
        self.file = file
        """The file that was read, if any; flags and environment may be wrong, too."""

    def __str__(self) -> str:
        of_file = "" if self.file is None else f" ({self.file})"
        head = f"{self.what}{of_file}, {len(self.problems)} to mend:"
        return "\n".join([head, *(str(p) for p in self.problems)])


class StartError(HubSubError, code="start"):
    words = "the node cannot start"


class DataDirectoryError(HubSubError, code="data_directory"):
    """A data directory that cannot be read or repaired offline."""

    words = "the data directory cannot be used"


class NodeFailedError(HubSubError, code="node_failed"):
    words = "a shard of the node failed"
