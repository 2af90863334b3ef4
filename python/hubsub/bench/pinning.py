"""Children on cores of their own."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager


@contextmanager
def pinned(cores: Set[int]) -> Iterator[None]:
    """Children started inside run on `cores` only; no cores, or no such call here: anywhere.

    A child inherits what its parent's thread may use, so the calling thread is moved
    for the time of the start and moved back.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
