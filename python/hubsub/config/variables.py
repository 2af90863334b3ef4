"""The environment's `HUBSUB_…` variables that are not the configuration's, and those that nobody knows.

A variable that nobody knows is no error: the environment belongs to the machine, and another version may
know it. But a slip of the pen would go unseen, so it is told.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from hubsub.config.definitions import KEYS
from hubsub.config.kinds import nearest
from hubsub.config.limits import LIMITS

PREFIX = "HUBSUB_"

OTHERS: Mapping[str, str] = {
    "HUBSUB_CONFIG": "the configuration file",
    "HUBSUB_URL": "the node that commands ask over HTTP",
    "HUBSUB_SERVER": "the server of `hubsub pub` and `hubsub sub`",
    "HUBSUB_LOAD": "the load generator of `hubsub bench`",
    "HUBSUB_FAILURES": "where the tests list those that failed",
    "HUBSUB_SKIPS": "where the tests list those that were skipped",
    "HUBSUB_TEST_TIMEOUT_S": "how long a test waits",
}
"""Those that are no key: name to what it names."""

_SERVICE = re.compile(r"HUBSUB_(SERVICE_(HOST|PORT)(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.+)?)?)")
"""What Kubernetes sets in every container of a namespace with a service `hubsub`."""


class Unknown(NamedTuple):
    """A variable that nobody knows."""

    name: str
    hint: str | None


def unknown_variables(environ: Mapping[str, str]) -> list[Unknown]:
    """The variables that look like HubSub's, have a value and mean nothing, by name."""
    known = {*(key.env for key in KEYS), *(limit.env for limit in LIMITS), *OTHERS}
    strange = [
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and value and name not in known and not _SERVICE.fullmatch(name)
    ]
    return [Unknown(name, _hint(name, known)) for name in sorted(strange)]


def _hint(name: str, known: set[str]) -> str | None:
    # What all have in common would make any name near.
    hint = nearest(name.removeprefix(PREFIX), sorted(k.removeprefix(PREFIX) for k in known))
    return hint and hint.replace("'", f"'{PREFIX}", 1)
