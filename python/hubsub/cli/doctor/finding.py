"""What a check of `hubsub doctor` says."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing looked at. What is not `ok` says in `hint` what to do about it."""

    check: str
    state: str
    """`ok`, `note` (works, with a bound worth knowing) or `bad`."""
    found: str
    hint: str = ""
