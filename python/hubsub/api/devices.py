"""/v1/devices: devices, their state and their actions.

A device is connected while an MQTT client has its name as client id. An action is a record on its own topic.
Its headers let an MQTT 5 client reply by the protocol's own means: a response topic and correlation data.
"""

import asyncio
import secrets
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer, json_bytes
from hubsub.api.device_schema import (
    ActionList,
    ActionOrder,
    Connection,
    Device,
    DeviceAction,
    DevicePage,
    ListedDevice,
)
from hubsub.api.everywhere import Everywhere
from hubsub.api.params import body, decode, flag, number, path_name
from hubsub.api.publish import PUBLISH_ERRORS, once
from hubsub.api.rooms import record_body
from hubsub.api.routes import LIMIT, Param, Routes, key_of
from hubsub.api.schema import Record, payload_fields
from hubsub.api.state import State
from hubsub.control.devices import ACTION_ID, CORRELATION, EXPIRY, RESPONSE_TOPIC, Action, Devices, actions_of
from hubsub.errors import (
    ActionsNotKeptError,
    BadRequestError,
    HubSubError,
    NoDevicesError,
    NoSuchClassError,
    NoSuchDeviceError,
    refusal,
)
from hubsub.names import literal_glob, text_of
from hubsub.node import Failed, HistoryRow, Item
from hubsub.node.status import Client

STATES: Final = ("queued", "delivered", "acknowledged", "expired")
READS_MAX: Final = 32
"""Rooms that one request reads at once: the nodes serve other requests, too."""
OWN_HEADERS: Final = (ACTION_ID, EXPIRY, CORRELATION, RESPONSE_TOPIC)

routes = Routes("devices")
CLASS = Param("class", "Of devices of this class; without it, of the first that has some.")
ERRORS = ("no_devices", "no_such_class", "nodes_unreachable")


@routes(
    "GET",
    "/v1/devices",
    "Devices in order of the names of their rooms",
    (
        Param("prefix", "Devices whose names begin so."),
        Param("times", "Also when each said something last: a read of each one's room.", "boolean"),
        Param("connected", "Those that are connected, or those that are not.", "boolean"),
        Param("after", "Devices behind this one: the `next` of the page before."),
        LIMIT,
        CLASS,
    ),
    answer=(DevicePage,),
    errors=ERRORS,
)
async def list_devices(state: State, request: Request) -> Response:
    """A page reads as many rooms as `limit` allows; entries that `connected` filters out make it shorter."""
    devices = _devices(state, request)
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    before, behind = _room_form(state, devices)
    prefix, after = (request.query_params.get(key, "") for key in ("prefix", "after"))
    wanted = request.query_params.get("connected")
    if wanted not in (None, "true", "false"):
        raise BadRequestError("connected must be true or false", wanted)
    glob = literal_glob(before + prefix.encode()) + b"*" + literal_glob(behind)
    nodes = Everywhere(state)
    found, goes_on = await nodes.rooms(glob, before + after.encode() + behind if after else None, limit)
    inner = {room: room.name[len(before) : len(room.name) - len(behind)] for room in found}
    named = {room: name.decode(errors="replace") for room, name in inner.items()}
    rooms = {name: room for room, name in named.items() if devices.has(name)}
    connected = await nodes.clients(list(rooms))
    page = [
        ListedDevice(
            id=name, room=text_of(room.name), position=room.position, connection=_connection(connected, name)
        )
        for name, room in rooms.items()
    ]
    page = [row for row in page if wanted is None or (row.connection is not None) == (wanted == "true")]
    if flag(request, "times"):
        free = asyncio.Semaphore(READS_MAX)

        async def look(row: ListedDevice) -> None:
            async with free:
                rows = await nodes.history(rooms[row.id].name, 1)
            row.sent_us = rows[-1].timestamp_us if rows else None

        await asyncio.gather(*map(look, page))
    last = text_of(inner[found[-1]]) if goes_on and found else None
    return json_answer(DevicePage(devices=page, next=last), headers=nodes.headers)


@routes(
    "GET",
    "/v1/devices/{device}",
    "A device: whether it is connected, its last state",
    (CLASS,),
    answer=(Device,),
    errors=("no_such_device", *ERRORS),
)
async def show_device(state: State, request: Request) -> Response:
    devices, device = _device(state, request)
    nodes = Everywhere(state)
    last, connected = await _said(state, nodes, devices, device)
    if last is None and not connected and nodes.headers is None:
        raise NoSuchDeviceError(value=device, hint="GET /v1/devices lists them")
    answer = Device(
        id=device,
        room_class=devices.room_class,
        connection=_connection(connected, device),
        state=last,
        state_topic=devices.state_topic(device),
        action_topic=devices.action_topic(device, "{action}"),
    )
    return json_answer(answer, headers=nodes.headers)


@routes(
    "GET",
    "/v1/devices/{device}/actions",
    "What a device is to do, and what became of it, the latest last",
    (Param("state", "Those in this state.", choices=STATES), LIMIT, CLASS),
    answer=(ActionList,),
    errors=("actions_not_kept", *ERRORS),
)
async def list_actions(state: State, request: Request) -> Response:
    devices, device = _device(state, request)
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    wanted = request.query_params.get("state")
    if wanted is not None and wanted not in STATES:
        raise BadRequestError("an action is in no such state", wanted, f"one of {', '.join(STATES)}")
    room, nodes = _actions_room(state, devices, device), Everywhere(state)
    most = state.limits["history_reply_records_max"]
    rows = await nodes.history(room, most)
    is_whole = not rows or await _is_first(nodes, room, rows[0])
    now_us = time.time_ns() // 1_000
    shown = [_action_body(action, now_us) for action in actions_of(devices, device, rows)]
    shown = [action for action in shown if wanted is None or action.state == wanted]
    return json_answer(ActionList(actions=shown[-limit:], is_whole=is_whole), headers=nodes.headers)


@routes(
    "POST",
    "/v1/devices/{device}/actions",
    "Gives a device something to do, now or when it is back",
    (CLASS, key_of("one action")),
    body=(ActionOrder,),
    answer=(DeviceAction,),
    status=201,
    errors=("actions_not_kept", *PUBLISH_ERRORS, *ERRORS),
)
async def act(state: State, request: Request) -> Response:
    data = await body(state, request)
    order: ActionOrder = decode(data, ActionOrder)
    devices, device = _device(state, request)
    room = _actions_room(state, devices, device)
    taken = [name for name in order.headers if name in OWN_HEADERS]
    if taken:
        raise BadRequestError("an action has this header by itself", taken[0])
    topic = devices.action_topic(device, order.name)
    publisher = f"http:{request.client.host}:{request.client.port}" if request.client else "http"

    async def work() -> bytes:
        name = secrets.token_hex(8)
        headers = order.headers | {
            ACTION_ID: name,
            CORRELATION: name,
            RESPONSE_TOPIC: devices.answer_topic(device, order.name),
        }
        if order.expiry_s is not None:
            headers[EXPIRY] = str(order.expiry_s)
        payload, now_us = order.payload_bytes(), time.time_ns() // 1_000
        (result,) = await state.node.publish([Item(topic.encode(), payload, headers, publisher)])
        if isinstance(result, Failed):
            raise refusal(*result)
        nodes = Everywhere(state)
        # Read the record back: its timestamp is the one that the hub assigned, which all other readers get.
        rows = await nodes.history(room, 1, topic.encode(), (result.epoch, result.seq - 1))
        own = HistoryRow(result.epoch, result.seq, now_us, topic.encode(), publisher, payload, headers)
        row = next((row for row in rows if (row.epoch, row.seq) == (result.epoch, result.seq)), own)
        (action,) = actions_of(devices, device, [row])
        answer = _action_body(action, now_us)
        answer.receivers, answer.seen = result.receivers, await _is_seen(state, nodes, devices, device)
        return json_bytes(answer)

    answer = await once(state, request, [topic.encode()], data, work)
    return Response(answer, 201, media_type="application/json")


def _devices(state: State, request: Request) -> Devices:
    """Devices of the class in the query, or of the first class that has devices."""
    wanted = request.query_params.get("class")
    classes = [cls for cls in state.classes if wanted in (None, cls.name)]
    if wanted is not None and not classes:
        raise NoSuchClassError(value=wanted, hint="GET /v1/classes lists them")
    found = (devices for cls in classes if (devices := Devices.of(cls)) is not None)
    devices = next(found, None)
    if devices is None:
        raise NoDevicesError(value=wanted)
    return devices


def _device(state: State, request: Request) -> tuple[Devices, str]:
    """The device of the path.

    Raises:
        BadRequestError: the name cannot be a device's.
    """
    devices, name = _devices(state, request), path_name(request, "device")
    device = name.decode(errors="replace")
    if device.encode() != name or not devices.has(device):
        hint = f"1 to 255 bytes of UTF-8 without /, + and #, as {devices.template} has it"
        raise BadRequestError("this is no name of a device", text_of(name), hint)
    return devices, device


def _room_form(state: State, devices: Devices) -> tuple[bytes, bytes]:
    """The parts before and after the device's name in the name of its state room."""
    probe = secrets.token_hex(8)
    room, _ = state.node.room_of(devices.state_topic(probe).encode())
    before, found, behind = room.partition(probe.encode())
    if not found:
        hint = f'give the class of {devices.state} a `room` that names it, such as "devices/+", or "topic"'
        raise NoDevicesError("rooms of devices' states do not name them", text_of(room), hint)
    return before, behind


def _actions_room(state: State, devices: Devices, device: str) -> bytes:
    """The room that holds both a device's actions and its replies.

    Raises:
        ActionsNotKeptError: they are in several rooms, or the room has no history.
    """
    topics = (devices.action_topic(device, "a"), devices.answer_topic(device, "b"))
    (room, room_class), (other, _) = (state.node.room_of(topic.encode()) for topic in topics)
    if room != other:
        hint = 'give their class a `room` that all of a device\'s have, such as "devices/+/actions" or "devices/+"'
        raise ActionsNotKeptError("a device's actions are not in one room", devices.actions, hint)
    cls = next((cls for cls in state.classes if cls.name == room_class), None)
    if cls is None or cls.history is None:
        raise ActionsNotKeptError(value=room_class, hint="give it a `history`, and make it durable")
    return room


async def _said(
    state: State, nodes: Everywhere, devices: Devices, device: str
) -> tuple[Record | None, dict[str, Client]]:
    """A device's last state and its connection."""
    topic = devices.state_topic(device).encode()
    room, _ = state.node.room_of(topic)
    rows, connected = await asyncio.gather(nodes.history(room, 1, topic), nodes.clients([device]))
    # Where no history has it, the topic may have a retained message.
    return record_body(rows[-1]) if rows else await nodes.retained(topic), connected


async def _is_seen(state: State, nodes: Everywhere, devices: Devices, device: str) -> bool | None:
    """Whether the device is known. None where not all nodes could be asked: the action is published either way."""
    try:
        last, connected = await _said(state, nodes, devices, device)
    except HubSubError:
        return None
    is_seen = last is not None or bool(connected)
    return is_seen if is_seen or nodes.headers is None else None


async def _is_first(nodes: Everywhere, room: bytes, row: HistoryRow) -> bool:
    """Whether the room has no older record than this one."""
    if row.seq == 1:
        return True
    before = await nodes.history(room, 1, after=(row.epoch, row.seq - 2))
    return not before or before[0].seq == row.seq


def _connection(connected: dict[str, Client], device: str) -> Connection | None:
    client = connected.get(device)
    if client is None:
        return None
    return Connection(node=client.node, client=client.id, protocol=client.protocol, connected_s=client.age_s)


def _action_body(action: Action, now_us: int) -> DeviceAction:
    row = action.row
    fields: dict[str, Any] = {**payload_fields(row.payload)}
    return DeviceAction(
        id=action.id,
        name=action.name,
        state=action.state(now_us),
        topic=text_of(row.topic),
        position=f"{row.epoch}-{row.seq}",
        timestamp_us=row.timestamp_us,
        expires_us=action.expires_us,
        delivered_us=action.delivered_us,
        answer=None if action.answer is None else record_body(action.answer),
        **fields,
    )
