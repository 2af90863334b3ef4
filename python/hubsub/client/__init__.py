"""A client for HubSub in pure Python; it needs neither the compiled core nor the server's parts.

`resp` is the codec, `connection` one connection, `subscription` records in
order over reconnects, `client` the whole for asyncio, `blocking` for all else.
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
