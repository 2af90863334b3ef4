"""The coordinator: one interface to the store of the cluster, several backends, one conformance suite."""

from hubsub.coordination.backends import open_coordinator, open_url
from hubsub.coordination.base import Coordinator, Delete, Page, Put, Write
from hubsub.coordination.lease import Lease
from hubsub.coordination.watch import Changes, Entry, Watch

__all__ = [
    "Changes",
    "Coordinator",
    "Delete",
    "Entry",
    "Lease",
    "Page",
    "Put",
    "Watch",
    "Write",
    "open_coordinator",
    "open_url",
]
