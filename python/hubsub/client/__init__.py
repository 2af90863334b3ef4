"""A client for HubSub in pure Python; it needs neither the compiled core nor the server's parts.

`resp` is the codec, `connection` a single connection, `subscription` delivers records in order over
reconnects, `client` is the asyncio client, `blocking` the one for code without asyncio.
"""

from hubsub.client.blocking import BlockingClient, BlockingConsumer, BlockingSubscription
from hubsub.client.client import URL_DEFAULT, Client
from hubsub.client.consumer import Consumer
from hubsub.client.options import Options
from hubsub.client.subscription import Subscription
from hubsub.client.types import Gap, History, Member, Position, Record

__all__ = [
    "URL_DEFAULT",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingSubscription",
    "Client",
    "Consumer",
    "Gap",
    "History",
    "Member",
    "Options",
    "Position",
    "Record",
    "Subscription",
]
