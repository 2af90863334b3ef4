"""`HUBSUB_…` environment variables that are not configuration keys, and unknown ones.

An unknown variable is not an error: the environment belongs to the machine, and another version may know it.
It is reported, because otherwise a typing error would stay unnoticed.
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
    "HUBSUB_TESTING_FRESH": "whether nodes of hubsub.testing are new processes instead of forks",
    "HUBSUB_TEST_TIMEOUT_S": "how long a test waits",
}
"""Meanings of the variables that are not keys, by name."""

_SERVICE = re.compile(r"HUBSUB_(SERVICE_(HOST|PORT)(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.+)?)?)")
"""Variables that Kubernetes sets in every container of a namespace with a service `hubsub`."""


class Unknown(NamedTuple):
    """An unknown variable, with a similar known name as hint."""

    name: str
    hint: str | None


def unknown_variables(environ: Mapping[str, str]) -> list[Unknown]:
    """Unknown `HUBSUB_…` variables that have a value, sorted by name."""
    known = {*(key.env for key in KEYS), *(limit.env for limit in LIMITS), *OTHERS}
    strange = [
        name
        for name, value in environ.items()
        if name.startswith(PREFIX) and value and name not in known and not _SERVICE.fullmatch(name)
    ]
    return [Unknown(name, _hint(name, known)) for name in sorted(strange)]


def _hint(name: str, known: set[str]) -> str | None:
    # The common prefix would make any two names similar.
    hint = nearest(name.removeprefix(PREFIX), sorted(k.removeprefix(PREFIX) for k in known))
    return hint and hint.replace("'", f"'{PREFIX}", 1)
