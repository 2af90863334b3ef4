"""The routes of devices. Their handlers query other nodes themselves, by routes of the table, so none has a
reach.
"""

from hubsub.api import devices
from hubsub.api.device_schema import ActionList, ActionOrder, Device, DeviceAction, DevicePage
from hubsub.api.routes import LIMIT, Param, Route, key_of

CLASS = Param("class", "Of devices of this class; without it, of the first that has some.")
ERRORS = ("no_devices", "no_such_class", "nodes_unreachable")

DEVICE_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/devices",
        "Devices in order of the names of their rooms",
        devices.list_devices,
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
        tag="devices",
    ),
    Route(
        "GET",
        "/v1/devices/{device}",
        "A device: whether it is connected, its last state",
        devices.show_device,
        (CLASS,),
        answer=(Device,),
        errors=("no_such_device", *ERRORS),
        tag="devices",
    ),
    Route(
        "GET",
        "/v1/devices/{device}/actions",
        "What a device is to do, and what became of it, the latest last",
        devices.list_actions,
        (
            Param("state", "Those in this state.", choices=devices.STATES),
            LIMIT,
            CLASS,
        ),
        answer=(ActionList,),
        errors=("actions_not_kept", *ERRORS),
        tag="devices",
    ),
    Route(
        "POST",
        "/v1/devices/{device}/actions",
        "Gives a device something to do, now or when it is back",
        devices.act,
        (
            CLASS,
            key_of("one action"),
        ),
        body=(ActionOrder,),
        answer=(DeviceAction,),
        status=201,
        errors=(
            "actions_not_kept",
            "topic_length",
            "payload_length",
            "body_too_large",
            "idempotency_mismatch",
            "too_many_rooms",
            "room_creation_rate",
            "publish_rate",
            "not_allowed",
            "disk_full",
            "log_failed",
            "quarantined",
            *ERRORS,
        ),
        tag="devices",
    ),
)
