"""The one door to the compiled core: only `hubsub.node` imports this, and only this imports `hubsub._core`."""

from hubsub._core import (
    BUILD_PROFILE,
    Coordinator,
    Core,
    RowReader,
    __version__,
    error_codes,
    limits_default,
    log_manifest,
    log_repair,
    log_show,
    log_verify,
    room_of,
)

__all__ = [
    "BUILD_PROFILE",
    "Coordinator",
    "Core",
    "RowReader",
    "__version__",
    "error_codes",
    "limits_default",
    "log_manifest",
    "log_repair",
    "log_show",
    "log_verify",
    "room_of",
]
