"""Starts child processes on dedicated cores."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager


@contextmanager
def pinned(cores: Set[int]) -> Iterator[None]:
    """Children started in the block run on `cores` only; with no cores, or without this system call: anywhere.

    A child inherits the affinity of its parent's thread, so the calling thread is moved during the start and
    moved back.
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
