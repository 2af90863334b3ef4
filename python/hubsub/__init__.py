"""HubSub: a pub/sub server for rooms, and its client.

Importing this loads nothing else; each name below is loaded at its first use,
so that `hubsub.client` works where the server's parts are not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hubsub.version import VERSION as __version__

if TYPE_CHECKING:
    from hubsub.client import BlockingClient, Client, Gap, Position, Record
    from hubsub.errors import HubSubError

__all__ = ["BlockingClient", "Client", "Gap", "HubSubError", "Position", "Record", "__version__"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'hubsub' has no attribute {name!r}")
    return getattr(import_module("hubsub.errors" if name == "HubSubError" else "hubsub.client"), name)
