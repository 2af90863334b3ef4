"""The routes of named consumers."""

import msgspec
from starlette.responses import Response

from hubsub.api import consumers, merges
from hubsub.api.answers import json_answer
from hubsub.api.consumer_schema import Consumer, ConsumerList
from hubsub.api.reach import AllTold, Asked, Gathered
from hubsub.api.routes import Route


class AtItsRoom:
    """Answers with the data of the room's leader, which is the most complete; else of a node that leads the
    consumer's entry.
    """

    async def answer(self, asked: Asked) -> Response:
        own, replies, _ = await asked.of_all()
        answers = [(own.status_code, bytes(own.body)), *((r.status, r.body) for r in replies.values())]
        found = [msgspec.json.decode(body, type=Consumer) for status, body in answers if status < 400]
        if not found:
            return own
        return json_answer(min(found, key=lambda consumer: (consumer.lag is None, -consumer.members)))


CONSUMER_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/consumers",
        "Groups that keep their place in a topic, and how far they are behind",
        consumers.list_consumers,
        answer=(ConsumerList,),
        tag="consumers",
        reach=Gathered(ConsumerList, merges.consumers),
    ),
    Route(
        "GET",
        "/v1/consumers/{group}/{topic}",
        "One of them",
        consumers.show_consumer,
        answer=(Consumer,),
        errors=("no_such_consumer",),
        tag="consumers",
        reach=AtItsRoom(),
    ),
    Route(
        "DELETE",
        "/v1/consumers/{group}/{topic}",
        "Forgets its place: its next member begins with what comes then",
        consumers.delete_consumer,
        status=204,
        errors=("no_such_consumer",),
        tag="consumers",
        reach=AllTold(),
    ),
)
