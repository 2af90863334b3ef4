"""Bodies of /v1/consumers: named consumers and their lag."""

from typing import Annotated

from msgspec import Meta, Struct


class Consumer(Struct, kw_only=True):
    """A consumer group with a persisted position in a topic."""

    group: str
    topic: str
    position: Annotated[str, Meta(description="All records up to this one are acknowledged.")]
    lag: Annotated[
        int | None,
        Meta(
            description="Records of the topic's room that are not; null where another node leads that room."
        ),
    ]
    delivered: Annotated[int, Meta(description="Of these, records that members have.")]
    members: Annotated[int, Meta(description="In the whole cluster.")]


class ConsumerList(Struct, kw_only=True):
    """Consumers by group and topic."""

    consumers: list[Consumer]
