"""A client's time limits, retries and back-off."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times of a client, all in seconds."""

    timeout_s: float = 5.0
    """For connecting, and for each reply."""
    ping_s: float = 15.0
    """A subscription pings the server after this time without data."""
    backoff_s: float = 0.05
    """First wait before another attempt to reconnect; doubles each time, with jitter."""
    backoff_s_max: float = 5.0
    give_up_s: float | None = None
    """A subscription that could not reconnect for this long ends with its error; None: never."""
    name: str | None = None
    """Name shown by `client ls`."""
