"""Request and response bodies of the device routes."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hubsub.api.schema import NextOfShort, Payload, PayloadBase64, Record, from_base64
from hubsub.errors import BadRequestError


class Connection(Struct, kw_only=True):
    """The MQTT connection whose client id is a device's name."""

    node: str
    client: Annotated[int, Meta(description="Id of the connection there.")]
    protocol: str
    connected_s: Annotated[float, Meta(description="For so long.")]


class ListedDevice(Struct, kw_only=True):
    """A device that has published its state."""

    id: str
    room: Annotated[str, Meta(description="Of its state.")]
    position: Annotated[str, Meta(description="EPOCH-SEQ of the last record of that room.")]
    sent_us: Annotated[
        int | None,
        Meta(
            description="When that record was said, in µs since 1970; null where nobody asked for `times`, or no "
            "history has it."
        ),
    ] = None
    connection: Annotated[Connection | None, Meta(description="Null: it is not connected.")] = None


class DevicePage(Struct, kw_only=True):
    """One page of devices in order of their rooms' names."""

    devices: list[ListedDevice]
    next: NextOfShort


class Device(Struct, kw_only=True):
    """Connection, last state and topics of one device."""

    id: str
    room_class: Annotated[str, Meta(description="That has its template.")]
    connection: Annotated[Connection | None, Meta(description="Null: it is not connected.")]
    state: Annotated[
        Record | None,
        Meta(
            description="The last record of its state topic, or where no history has one what the topic retains; "
            "null where there is neither."
        ),
    ]
    state_topic: str
    action_topic: Annotated[str, Meta(description="`{action}` stands for the action.")]


class DeviceAction(Struct, kw_only=True):
    """An action for a device, and its progress."""

    id: str
    name: str
    state: Annotated[
        Literal["queued", "delivered", "acknowledged", "expired"],
        Meta(
            description="`queued`: no answer yet, and it may still begin; `delivered`: likewise, and the device's MQTT "
            "client has acknowledged its message; `acknowledged`: it has answered; `expired`: it was not "
            "delivered, and may not begin any more."
        ),
    ]
    topic: str
    position: str
    timestamp_us: int
    expires_us: Annotated[
        int | None, Meta(description="When it may not begin any more; null: it always may.")
    ]
    delivered_us: Annotated[
        int | None,
        Meta(description="When its message was acknowledged; null: it was not, as far as is known."),
    ] = None
    payload: Payload = None
    payload_base64: PayloadBase64 = None
    receivers: Annotated[
        int | None, Meta(description="Of the answer to its POST: subscribers that it goes to at once.")
    ] = None
    seen: Annotated[
        bool | None,
        Meta(
            description="Of the answer to its POST: whether the device is connected or has said how it is. One that "
            "was never seen gets the action when it comes, if it does. Null: not all nodes could be asked."
        ),
    ] = None
    answer: Annotated[Record | None, Meta(description="With which it was acknowledged.")] = None


class ActionList(Struct, kw_only=True):
    """Actions of a device, oldest first."""

    actions: list[DeviceAction]
    is_whole: Annotated[
        bool,
        Meta(
            description="False: the room has more records than `history_reply_records_max`, or bytes than "
            "`history_reply_bytes_max`; older ones were not looked at."
        ),
    ]


class ActionOrder(Struct, kw_only=True, forbid_unknown_fields=True):
    """Request for an action; give `payload`, `payload_base64` or neither."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
    payload: str | None = None
    payload_base64: str | None = None
    expiry_s: Annotated[
        Annotated[int, Meta(ge=1, le=2**32 - 1)] | None,
        Meta(description="For so long it may begin; null: always."),
    ] = 86_400
    headers: dict[str, str] = {}

    def payload_bytes(self) -> bytes:
        if self.payload is not None and self.payload_base64 is not None:
            raise BadRequestError("give either payload or payload_base64", self.name)
        if self.payload_base64 is None:
            return (self.payload or "").encode()
        return from_base64(self.payload_base64)
