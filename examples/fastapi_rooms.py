"""A web service over rooms: a POST sends a message, a GET streams the room as server-sent events.

Start a node (`make run`), install FastAPI (`pip install fastapi`), then run:

    uvicorn --app-dir examples fastapi_rooms:app --port 8000
    curl -N http://127.0.0.1:8000/rooms/lobby/events
    curl http://127.0.0.1:8000/rooms/lobby --json '{"user": "Ann", "text": "hello"}'

A browser reads the stream with `new EventSource("/rooms/lobby/events")`. After a lost connection it sends the id of the
last event that it got, and the stream goes on after that one. HUBSUB_SERVER=redis://HOST:PORT is a node elsewhere.
"""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from hubsub.client import URL_DEFAULT, Client, Subscription

NODE = os.environ.get("HUBSUB_SERVER", URL_DEFAULT)
LINE_END = re.compile(r"\r\n|\r|\n")
"""As a reader of events splits lines."""


class Message(BaseModel):
    """The body of a POST, and the data of an event."""

    user: str
    text: str
    kind: str = "message"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all requests, as long as the service runs."""
    async with Client(NODE) as client:
        app.state.hubsub = client
        yield


app = FastAPI(title="Rooms", lifespan=lifespan)


@app.post("/rooms/{room}")
async def send(room: str, message: Message, request: Request) -> dict[str, int]:
    """Publishes a message; returns how many subscribers get it."""
    client: Client = request.app.state.hubsub
    return {"receivers": await client.publish(f"chat:{room}", message.model_dump_json())}


@app.get("/rooms/{room}/events")
async def events(
    room: str, request: Request, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Streams the last 20 messages and all later ones, or those after `Last-Event-ID`."""
    client: Client = request.app.state.hubsub
    messages = client.subscribe(f"chat:{room}", resume=last_event_id, last=None if last_event_id else 20)
    return StreamingResponse(stream(messages), media_type="text/event-stream")


async def stream(messages: Subscription) -> AsyncIterator[str]:
    """One event for each message, with its position as the id; ends when the reader is gone."""
    async with messages:
        yield ": open\n\n"
        async for record in messages:
            lines = LINE_END.split(record.payload.decode(errors="replace"))
            data = "".join(f"data: {line}\n" for line in lines)
            yield f"id: {record.position}\n{data}\n"
