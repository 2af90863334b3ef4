"""Devices: their latest values, and actions for them."""

from hubsub.pipeline.devices.actions import actions, unaddressed
from hubsub.pipeline.devices.readings import dead_letters, named, readings
from hubsub.pipeline.devices.state import latest, merged, streamed

__all__ = ["actions", "dead_letters", "latest", "merged", "named", "readings", "streamed", "unaddressed"]
