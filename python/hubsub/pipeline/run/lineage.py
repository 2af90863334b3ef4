"""Ties a job's results to their checkpoint by an identity that both store.

A checkpoint numbers batches, and results are named by these numbers. A new checkpoint would therefore
overwrite the results of an old one, and other options would mix two meanings in one table. Both are refused.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hubsub.errors import ArchiveMismatchError, OptionError
from hubsub.pipeline.archive.store import Store

IN_CHECKPOINT = "hubsub.json"
IN_RESULTS = "_hubsub.json"
"""Readers of Parquet skip names that begin with an underscore."""


@dataclass(frozen=True)
class Lineage:
    """A job's identity from its first run on."""

    job: str
    id: str
    options: Mapping[str, str]
    """Options that change the meaning of the results."""

    @property
    def query(self) -> str:
        """Name under which nodes show its progress."""
        return f"{self.job}-{self.id}"

    def check(self, job: str, options: Mapping[str, str], hint: str) -> None:
        """Raises OptionError unless a run is of this job, with these options.

        Args:
            job: Name of the run's job.
            options: Options of the run.
            hint: Hint of the error.
        """
        if self.job != job:
            raise OptionError("the checkpoint is of another job", self.job, hint)
        for name in sorted({*options, *self.options}):
            was, given = self.options.get(name), options.get(name)
            if was != given:
                what = f"the checkpoint was made with another --{name}"
                raise OptionError(what, f"{was or 'none'}, now {given or 'none'}", hint)


def join(job: str, checkpoint: str, out: str | None, options: Mapping[str, str]) -> Lineage:
    """The identity of a checkpoint and its results; a new one if neither has any.

    Args:
        job: Name of the job.
        checkpoint: URI of the checkpoint.
        out: URI of the results; None if the results store their own identity.
        options: Options that change the meaning of the results.

    Raises:
        ArchiveMismatchError: checkpoint and results are from different runs.
        OptionError: they are of another job, or were made with other options.
    """
    anew = "give another --checkpoint and another --out, or remove both"
    if out is None:
        anew = "give another --checkpoint, or remove it"
    at_checkpoint, at_out = Store(checkpoint), None if out is None else Store(out)
    stored = _read(at_checkpoint, IN_CHECKPOINT)
    found = None if at_out is None else _read(at_out, IN_RESULTS)
    if at_out is not None:
        if stored is not None and found is None:
            raise ArchiveMismatchError("the checkpoint's results are not here", at_out.uri, anew)
        other = stored.id != found.id if stored and found else stored is None and _has_results(at_out)
        if other:
            raise ArchiveMismatchError("the results are of another checkpoint", at_out.uri, anew)
    if stored is not None:
        stored.check(job, options, anew)
        return stored
    # Results with an identity and nothing else: the first run did not get further.
    made = Lineage(job, found.id if found else secrets.token_hex(4), dict(options))
    body = json.dumps(vars(made), sort_keys=True).encode()
    if at_out is not None:
        at_out.create(IN_RESULTS, body)
    at_checkpoint.create(IN_CHECKPOINT, body)
    return made


def _has_results(out: Store) -> bool:
    return any(not path.startswith(("_", ".")) for path, _, _ in out.list(recursive=True))


def _read(store: Store, name: str) -> Lineage | None:
    data = store.read(name)
    if data is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        return Lineage(str(fields["job"]), str(fields["id"]), dict(fields["options"]))
    except (ValueError, KeyError, TypeError):
        raise ArchiveMismatchError("this cannot be read", store.spark_uri(name)) from None
