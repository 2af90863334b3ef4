"""A device: it sends its state, executes actions, and leaves a last will.

Start a node (`make run`), then the device, and send it an action:

    python examples/mqtt_device.py 7
    hubsub device show 7
    hubsub device act 7 heat 21
    hubsub device actions 7

The package is `paho-mqtt`, the protocol MQTT 5. The device keeps its session for a day: an action that you send while
it is off waits for it. If it dies, the node publishes its last will as its state.
"""

import argparse
import json
import time
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DAY_S = 86_400


class Device:
    """A thermostat. Paho calls its methods `on_…` in a thread of its own."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.topic = f"devices/{name}"
        self.target = 20.0
        # The node lists a device as connected while its client id is the device's name.
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.on_connect = self.on_connect
        self.client.on_message = self.on_message
        self.client.will_set(f"{self.topic}/state", json.dumps({"state": "lost"}), qos=1)
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = DAY_S
        self.client.connect(host, port, clean_start=False, properties=session)

    def on_connect(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        """Subscribes to the actions, on each connection again."""
        client.subscribe(f"{self.topic}/actions/+", qos=1)
        self.report("idle")

    def on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        """Executes an action and sends the result; the correlation data identifies the action."""
        action, value = message.topic.rpartition("/")[2], message.payload.decode()
        print(f"action: {action} {value}", flush=True)
        answer = Properties(PacketTypes.PUBLISH)
        if correlation := getattr(message.properties, "CorrelationData", None):
            answer.CorrelationData = correlation
        try:
            if action != "heat":
                raise ValueError("there is no such action")
            self.target = float(value)
            result = "ok"
            self.report("heating")
        except ValueError as error:
            result = f"error: {error}"
        client.publish(f"{message.topic}/done", result, qos=1, properties=answer)

    def report(self, state: str) -> None:
        """Publishes the device's state and target temperature."""
        report = json.dumps({"state": state, "target": self.target})
        self.client.publish(f"{self.topic}/state", report, qos=1)
        print(f"state: {report}", flush=True)

    def run(self, every_s: float) -> None:
        """Reports the state every `every_s` seconds until Ctrl-C."""
        self.client.loop_start()
        try:
            while True:
                time.sleep(every_s)
                self.report("idle")
        except KeyboardInterrupt:
            self.report("off")
        finally:
            self.client.disconnect()  # After a proper end the node drops the will.
            self.client.loop_stop()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A device that speaks MQTT.")
    options.add_argument("name", help="the name of the device")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=1883)
    options.add_argument(
        "--every", type=float, default=60, metavar="SECONDS", help="time between two reports"
    )
    args = options.parse_args()
    Device(args.name, args.host, args.port).run(args.every)
