"""Checks of relations between values of a configuration that are valid individually.

Each check adds a `Problem` per violation, and raises nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hubsub.config import memory
from hubsub.config.definitions import CLIENT_LISTENERS, LISTENERS
from hubsub.config.kinds import is_loopback, split_address
from hubsub.config.limits import LIMIT
from hubsub.config.model import RoomClass, Source
from hubsub.config.raw import named
from hubsub.errors import Problem

DATA_HINT = 'a directory of this node alone: data = "DIR", or --data DIR'


def logs(
    problems: list[Problem], data: str | None, limits: Mapping[str, int], logged: list[RoomClass]
) -> None:
    """Checks that the log of some classes is possible.

    Args:
        problems: Gets the violations.
        data: Data directory, or None.
        limits: All limits by name.
        logged: The classes with a log; may be empty.
    """
    if logged and not data:
        what = f"class {logged[0].name} is {logged[0].durability}"
        problems.append(Problem("data", None, f"is needed: {what}", DATA_HINT))
    least = limits["log_segment_bytes"]
    for cls in logged:
        assert cls.history is not None, "a class with a log has one"
        if cls.history.bytes < least:
            # Whole segments are removed, and never the one that is written to.
            where = f"class {cls.name}, history.bytes"
            what = f"must not be below limits.log_segment_bytes ({least}), which a log has at least"
            hint = "so much or more, for each hub of the class; or a smaller limits.log_segment_bytes"
            problems.append(Problem(where, cls.history.bytes, what, hint))


@dataclass(frozen=True)
class Checks:
    """Checks of keys and limits.

    Args:
        problems: Gets the violations.
        values: All keys by name; `cluster` changes default listeners.
        limits: All limits by name; `sums` lowers defaults.
        sources: Source of each key, and of each limit by `limits.NAME`.
    """

    problems: list[Problem]
    values: dict[str, Any]
    limits: dict[str, int]
    sources: Mapping[str, Source]

    def _add(self, key: str, value: object, reason: str, hint: str | None = None) -> None:
        self.problems.append(Problem(named(key, f"HUBSUB_{key.upper()}", self.sources), value, reason, hint))

    def _add_limit(self, name: str, reason: str, hint: str | None = None) -> None:
        where = named(f"limits.{name}", f"HUBSUB_LIMITS_{name.upper()}", self.sources)
        self.problems.append(Problem(where, self.limits[name], reason, hint))

    def stores(self) -> None:
        """Checks that the store of MQTT sessions is possible."""
        if self.values["inflight_store"] == "disk" and not self.values["data"]:
            self._add("inflight_store", "disk", "needs a data directory", DATA_HINT)

    def sums(self, shards: int) -> None:
        """Checks that a limit of one message, client or name does not exceed the limit of their sum.

        A smaller limit that has its default is lowered to the larger one, down to its own minimum. One that was
        set is a violation.

        Args:
            shards: Number of shards among which limits of the whole node are divided, from 1.
        """
        limits = self.limits
        for small, large in (
            ("frame_bytes_max", "input_shard_bytes_max"),
            ("mqtt_connect_bytes_max", "input_shard_bytes_max"),
            ("phoenix_message_bytes_max", "input_shard_bytes_max"),
            ("http_body_bytes_max", "http_bodies_bytes_max"),
            ("subscription_bytes_per_client_max", "subscription_bytes_shard_max"),
            ("topic_bytes_max", "room_names_bytes_max"),
            ("inline_bytes_max", "frame_bytes_max"),
            ("topic_bytes_max", "frame_bytes_max"),
            ("pattern_bytes_max", "frame_bytes_max"),
            ("output_bytes_max", "output_shard_bytes_max"),
            ("output_soft_bytes", "output_bytes_max"),
            ("reply_bytes_max", "reply_shard_bytes_max"),
            ("transaction_bytes_max", "input_shard_bytes_max"),
        ):
            # This limit of the whole node is divided among its shards.
            parts = shards if large == "room_names_bytes_max" else 1
            most = -(-limits[large] // parts)
            if limits[small] <= most:
                continue
            if self.sources[f"limits.{small}"] == "default":
                limits[small] = max(LIMIT[small].low, most)
                continue
            of_shard = f", a shard's part of {limits[large]}" if parts > 1 else ""
            hint = f"lower it, or raise limits.{large}"
            if large in memory.SHARES and self.sources[f"limits.{large}"] == "default":
                hint += f", which is {memory.shown(large)}"
            self._add_limit(small, f"must not be above limits.{large} ({most}{of_shard})", hint)

    def listeners(self) -> None:
        """Checks that other machines can reach a listener only if `insecure_open` is set."""
        for name in LISTENERS:
            address = self.values[name]
            # `link` is open to peers, which authenticate with the cluster's secret.
            is_closed = name == "link" or address is None or is_loopback(address)
            if not is_closed and not self.values["insecure_open"]:
                what = "other machines could reach this listener, and there are no users yet"
                self._add(name, address, what, "bind 127.0.0.1, or allow it with --insecure-open")

    def links(self) -> None:
        """Checks the time limits of links and leader leases, and that links have a secret."""
        limits = self.limits
        heartbeat, suspect, least = (
            limits[f"link_{name}"] for name in ("heartbeat_ms", "suspect_ms", "redial_ms_min")
        )
        lead, silence = limits["leader_lease_ms"], limits["leader_silence_ms"]
        of_lead = (
            f"must be below two thirds of leader_lease_ms ({lead}), so that a lead can be asked for once more"
        )
        for name, holds, reason in (
            (
                "link_heartbeat_ms",
                2 * heartbeat <= suspect,
                f"must not be above half of link_suspect_ms ({suspect})",
            ),
            (
                "link_silence_ms",
                suspect < limits["link_silence_ms"],
                f"must be above link_suspect_ms ({suspect})",
            ),
            (
                "link_redial_ms_max",
                least <= limits["link_redial_ms_max"],
                f"must not be below link_redial_ms_min ({least})",
            ),
            ("leader_silence_ms", 3 * silence < 2 * lead, of_lead),
            (
                "link_heartbeat_ms",
                2 * heartbeat <= silence,
                f"must not be above half of leader_silence_ms ({silence})",
            ),
        ):
            if not holds:
                self._add_limit(name, reason)
        if self.values["link"] is not None and self.sources["cluster_secret"] == "default":
            hint = "the same on all nodes: cluster_secret in the file, or HUBSUB_CLUSTER_SECRET"
            self.problems.append(Problem("cluster_secret", None, "is needed, since `link` is set", hint))

    def cluster(self) -> None:
        """Checks the keys of a cluster's node; values that were refused individually are skipped.

        Without the role `edge`, default listeners for clients become None.
        """
        values = self.values
        link, raft, coordinator = values["link"], values["raft"], values["coordinator"]
        is_outside = coordinator not in ("embedded", None)
        reason = (
            "coordinator"
            if is_outside
            else "raft"
            if raft is not None
            else "join"
            if values["join"]
            else None
        )
        if link is None and reason is not None:
            hint = "where other nodes reach this one, such as --link 0.0.0.0:3222"
            self._add("link", None, f"is needed, since `{reason}` makes this a node of a cluster", hint)
        if is_outside and raft is not None:
            hint = "leave it out, or use the embedded coordinator"
            self._add("raft", raft, "is a listener of the embedded coordinator alone", hint)
        if is_outside and values["join"]:
            hint = "leave it out: nodes with this `coordinator` find each other there"
            self._add("join", ",".join(values["join"]), "is a way to the embedded coordinator alone", hint)
        if link is not None and "edge" not in (values["role"] or ("edge",)):
            for name in CLIENT_LISTENERS:
                if self.sources[name] == "default":
                    values[name] = None
                elif values[name] is not None:
                    hint = f'leave it out, or write {name} = "off"; clients come to nodes of the role `edge`'
                    reason = "a node of a cluster that has not the role `edge` serves no clients"
                    self._add(name, values[name], reason, hint)
        if link is not None and link == raft and split_address(link)[1]:
            self._add("raft", raft, "must be another address than `link`", "another port")
        advertise = values["advertise"]
        if advertise is not None and not is_loopback(f"{advertise}:0"):
            for name in ("link", "raft"):
                if values[name] is not None and is_loopback(values[name]):
                    hint = "bind it to 0.0.0.0 or to that host's address, or advertise 127.0.0.1"
                    told = f"other machines cannot reach it, and are told that it is at {advertise} (`advertise`)"
                    self._add(name, values[name], told, hint)
