"""The routes of the console."""

from hubsub.api.console import events, files, now
from hubsub.api.console.schema import NodesNow
from hubsub.api.reach import Gathered
from hubsub.api.routes import Param, Route

CONSOLE_ROUTES: tuple[Route, ...] = (
    Route("GET", "/", "The console: a page for browsers", files.index, media_type="text/html", tag="console"),
    Route(
        "GET",
        "/console/{file}",
        "A file of the console",
        files.file,
        media_type="text/plain",
        errors=("not_found",),
        tag="console",
    ),
    Route(
        "GET",
        "/console/{folder}/{file}",
        "A file of the console",
        files.file_in_folder,
        media_type="text/plain",
        errors=("not_found",),
        tag="console",
    ),
    Route(
        "GET",
        "/v1/console/now",
        "What all nodes are and have done since their start",
        now.show_now,
        answer=(NodesNow,),
        tag="console",
        reach=Gathered(NodesNow, now.merged),
    ),
    Route(
        "GET",
        "/v1/console/events",
        "What the console is drawn from, as server-sent events, about one a second",
        events.events,
        (Param("room", "Also this room, and what comes to the end of its history.", min_length=1),),
        media_type=events.MEDIA_TYPE,
        errors=("topic_length",),
        tag="console",
    ),
)
