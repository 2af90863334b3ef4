"""`$SYS`: what a node publishes about itself to MQTT clients, and who may publish there."""

from __future__ import annotations

from clients.mqtt import PUBLISH, V5, Wire
from clients.servers import Server

from node.conftest import Start
from node.test_mqtt import begin, client
from node.test_reload import reload

OFTEN = {"sys_interval_ms": 50}


def told(one: Wire, *wanted: str) -> dict[str, str]:
    """Values by topic, once all wanted topics have arrived."""
    found: dict[str, str] = {}
    while not set(wanted) <= set(found):
        message = one.read(PUBLISH)
        found[message.topic] = message.rest.decode()
    return found


def tells(one: Wire, topic: str, value: str) -> None:
    """Waits until that topic has that value."""
    while True:
        message = one.read(PUBLISH)
        if (message.topic, message.rest.decode()) == (topic, value):
            return


def listener(server: Server, *filters: str) -> Wire:
    one = client(server, "listener")
    assert one.subscribe(*((name, 0) for name in filters)) == [0] * len(filters)
    return one


def test_a_lone_node_tells_what_it_counts(start: Start) -> None:
    server = begin(start, limits=OFTEN)
    with listener(server, "$SYS/#") as one, client(server, "busy") as busy:
        busy.subscribe(("a", 0), ("b/#", 0))
        for _ in range(3):
            busy.publish("nobody", b"12345")
        tells(one, "$SYS/broker/clients/connected", "2")
        tells(one, "$SYS/broker/subscriptions/count", "3")
        tells(one, "$SYS/broker/publish/messages/received", "3")
        found = told(
            one,
            *(
                f"$SYS/broker/{name}"
                for name in (
                    "version",
                    "uptime",
                    "clients/total",
                    "clients/maximum",
                    "messages/received",
                    "messages/sent",
                    "publish/messages/sent",
                    "publish/messages/dropped",
                    "bytes/received",
                    "bytes/sent",
                    "load/messages/received/1min",
                    "load/publish/sent/15min",
                )
            ),
        )
        assert found["$SYS/broker/version"].startswith("hubsub version ")
        assert found["$SYS/broker/uptime"].endswith(" seconds")
        # CONNECT and SUBSCRIBE of both clients, and the messages.
        assert int(found["$SYS/broker/messages/received"]) == 7
        assert int(found["$SYS/broker/messages/sent"]) > 4
        assert int(found["$SYS/broker/bytes/received"]) > 3 * 5
        assert float(found["$SYS/broker/load/messages/received/1min"]) > 0
    server_of_one = listener(server, "$SYS/broker/clients/+")
    with server_of_one as one:
        tells(one, "$SYS/broker/clients/connected", "1")
        tells(one, "$SYS/broker/clients/maximum", "2")


def test_what_ends_is_not_counted_on(start: Start) -> None:
    server = begin(start, limits=OFTEN)
    with listener(server, "$SYS/broker/subscriptions/count") as one:
        with client(server, "short") as short:
            short.subscribe(("a", 0), ("b/+", 1), number=2)
            tells(one, "$SYS/broker/subscriptions/count", "3")
            short.send(b"\xa2\x05\x00\x03\x00\x01a")
            tells(one, "$SYS/broker/subscriptions/count", "2")
        tells(one, "$SYS/broker/subscriptions/count", "1")


def test_a_wildcard_at_the_front_does_not_hear_of_it(start: Start) -> None:
    server = begin(start, limits=OFTEN)
    with client(server, "all") as everything, listener(server, "$SYS/broker/uptime") as one:
        everything.subscribe(("#", 0), ("+/broker/uptime", 0))
        told(one, "$SYS/broker/uptime")
        one.publish("last", b"")
        assert everything.read(PUBLISH).topic == "last"


def test_nobody_but_the_node_says_it(start: Start) -> None:
    server = begin(start, limits={"sys_interval_ms": 0})
    with listener(server, "$SYS/#", "mine") as one:
        with client(server, "new", version=V5) as new:
            new.publish("$SYS/broker/uptime", b"0", qos=1, number=1)
            assert new.read().body[2] == 0x87
        with client(server, "old") as old:
            # For this version the specification allows only an acknowledgement or closing the connection.
            old.publish("$SYS/broker/uptime", b"0", qos=1, number=1)
            old.ping()
            old.read()
        with server.connect() as redis:
            assert "NOPERM" in str(redis.ask("PUBLISH", "$SYS/broker/uptime", "0"))
        one.publish("mine", b"")
        assert one.read(PUBLISH).topic == "mine"


def test_redis_clients_hear_it_too(start: Start) -> None:
    server = begin(start, limits=OFTEN)
    with server.connect() as redis:
        redis.ask("SUBSCRIBE", "$SYS/broker/version")
        assert "hubsub version" in str(redis.read())


def test_it_is_off_and_on_by_a_limit(start: Start) -> None:
    server = begin(start, limits={"sys_interval_ms": 0})
    with listener(server, "$SYS/#", "mine") as one:
        one.publish("mine", b"")
        assert one.read(PUBLISH).topic == "mine"
        reload(server, sys_interval_ms=50)
        told(one, "$SYS/broker/uptime")
