"""The routes of retained messages."""

from hubsub.api import merges, retained
from hubsub.api.reach import AllTold, Gathered, Somewhere
from hubsub.api.retained import Retained, RetainedPage
from hubsub.api.routes import LIMIT, Param, Route

RETAINED_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/retained",
        "Messages that topics keep for who subscribes later, in order of topic",
        retained.list_retained,
        (
            Param("filter", "MQTT filter of topics; without it all."),
            Param("after", "Topics behind this one: the `next` of the page before."),
            LIMIT,
        ),
        answer=(RetainedPage,),
        tag="retained",
        reach=Gathered(RetainedPage, merges.retained),
    ),
    Route(
        "GET",
        "/v1/retained/{topic}",
        "What a topic keeps",
        retained.show_retained,
        answer=(Retained,),
        errors=("no_such_retained_message",),
        tag="retained",
        reach=Somewhere(),
    ),
    Route(
        "DELETE",
        "/v1/retained/{topic}",
        "Forgets it: who subscribes from now on gets none",
        retained.delete_retained,
        status=204,
        errors=("no_such_retained_message",),
        tag="retained",
        reach=AllTold(),
    ),
)
