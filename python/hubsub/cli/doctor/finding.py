"""Result of a check of `hubsub doctor`."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Result of one check. Unless it is `ok`, `hint` suggests a remedy."""

    check: str
    state: str
    """`ok`, `note` (works, with a limit worth knowing) or `bad`."""
    found: str
    hint: str = ""
