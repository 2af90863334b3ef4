"""State that `hubsub cluster up --data DIR` leaves for the next run: the nodes and their addresses.

A node's member of the embedded coordinator is in its directory, and the others expect it at its old address.
Nodes with such a member therefore start together, on their former addresses, which are in
`DIR/addresses.json`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hubsub.errors import DataDirectoryError

FILE = "addresses.json"


class Kept:
    """The directory of a cluster.

    Args:
        directory: Has one directory per node; created on the first write.
        names: Names of the nodes to run.

    Raises:
        DataDirectoryError: its file cannot be read.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self._path = directory / FILE
        self._bound = self._read()
        # The node has a member of the embedded coordinator. With another coordinator no node waits for nodes
        # that have not started yet.
        there = [name for name in names if (directory / name / "coordinator" / "identity").exists()]
        self.nodes: Mapping[str, Mapping[str, str | None]] = {n: self._bound.get(n, {}) for n in there}
        """Nodes that are members of the cluster already, with their known addresses."""

    def note(self, name: str, addresses: Mapping[str, str | None]) -> None:
        """Persists a node's bound addresses for the next run."""
        self._bound[name] = dict(addresses)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._bound, indent=1))
        os.replace(new, self._path)

    def _read(self) -> dict[str, dict[str, str | None]]:
        try:
            read = json.loads(self._path.read_text())
            return {str(name): {str(k): v for k, v in row.items()} for name, row in read.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            hint = "without this file nodes are bound to the ports that --base-port says"
            raise DataDirectoryError(f"{FILE} cannot be read ({error})", self._path, hint) from None
