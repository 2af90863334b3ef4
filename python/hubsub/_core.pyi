"""The whole interface between Python and the Rust core; `hubsub.node` describes each request.

No function here is called per message. A request goes into a shard's mailbox and returns at once; answers, log
lines and state changes come back as events, which `drain` returns in batches after `wake_fd` became readable. The
parameter of `Ticket` is the type of a request's answer. ValueError names an argument that is not valid; before
`start` there is RuntimeError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, final

from hubsub.node import status as st
from hubsub.node import types
from hubsub.node.status import Json
from hubsub.node.types import Rows, Ticket

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

__version__: Final[str]
BUILD_PROFILE: Final[Literal["debug", "release", "dist"]]

def limits_default() -> dict[str, int]: ...
def error_codes() -> list[tuple[str, str, bool]]: ...
def room_of(classes: Sequence[Mapping[str, Any]], hash_tags: bool, topic: bytes) -> tuple[bytes, str]:
    """Room of a topic and the name of its class; `classes` as in the configuration of `Core`."""

# The log of a directory that no node uses. OSError: a node uses it; it, or its manifest, cannot be read; its format is
# newer; there is no such hub; the manifest cannot be written again.

def log_manifest(directory: st.Directory) -> st.Manifest: ...
def log_verify(directory: st.Directory, progress: st.Progress) -> st.Verified: ...
def log_show(
    directory: st.Directory,
    hub: int | None,
    room: bytes | None,
    first: int,
    count: int | None,
    take: Callable[[list[st.LogRecord]], object],
) -> list[str]:
    """Passes records from offset `first` on to `take`, in batches, in order of hub and offset; None: all. Returns
    descriptions of unreadable parts.
    """

def log_repair(
    directory: st.Directory, hub: int | None, accept_loss: bool, progress: st.Progress
) -> st.Repaired:
    """Repairs one hub or all; without `accept_loss` only plans it."""

@final
class RowReader:
    """Reads an Arrow IPC stream of rows. Errors are a `ValueError` of a code and a text."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes the stream's next bytes; returns the full chunks: number of rows, and bytes."""

    def finish(self) -> tuple[int, bytes] | None:
        """Ends the stream; returns the last chunk, if any."""

@final
class Core:
    """A node's data plane: its shards and their threads."""

    def __new__(cls, config: Mapping[str, Any]) -> Self:
        """Checks the configuration, which `hubsub.node.core_config` makes; starts nothing."""

    def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards. Returns the bound `HOST:PORT` of each listener, None if off.
        OSError: an address cannot be bound, which is `filename` then; or there is another reason.
        """

    def accept(self) -> None: ...
    def reload(self, limits: Mapping[str, int]) -> None: ...
    def part_from_sessions(self) -> None: ...
    def stop(self, grace_ms: int) -> None: ...
    def join(self) -> None:
        """Waits for shards that stop, then ends the log cleanly. Releases the interpreter."""

    def wake_fd(self) -> int:
        """Descriptor that is readable while events wait; the core owns it."""

    def drain(self, events_max: int) -> list[tuple[Any, ...]]:
        """Takes up to `events_max` events in order of arrival, and clears the descriptor when none is left.

        `("answer", ticket, value)`, `("refused", ticket, code, message)`; of streams and hubs with the value
        concerned, and None or the first missing offset and the first one after the gap;
        `("log", level, message, fields)` with level `debug|info|warning|error`;
        `("link", kind, node, incarnation, code, text)`: `node.PeerEvent`;
        `("lead", kind, hub, term, controller_term)`: `node.LeaseEvent`;
        `("ready",)`: `route_ready` has changed;
        `("room_miss", room_class, room, makes)`: answer by `route_rooms`, `route_refuse`, `route_absent`;
        `("locate", number, room)`: answer by `route_located`;
        `("asked", node, number, body)`: request of a peer's control plane, answer by `link_answer`;
        `("parted", shard)` after `part_from_sessions`;
        `("stopped", shard, reason)` with reason None after a clean stop.
        """
    # Records and rooms.
    def publish(
        self,
        ticket: Ticket[Rows[types.Published | types.Failed]],
        items: Sequence[types.Item],
        as_node: bool,
    ) -> None: ...
    def row_reader(self, topic: bytes | None, publisher: str) -> RowReader: ...
    def publish_rows(
        self,
        ticket: Ticket[tuple[int, list[tuple[int, str, str]]]],
        chunk: bytes,
        left: Sequence[int] | None,
        of: Sequence[int] | None,
        producer: int,
    ) -> None: ...
    def room(self, ticket: Ticket[st.Room | None], room: bytes) -> None: ...
    def rooms(
        self, ticket: Ticket[list[st.Room]], match: bytes | None, after: bytes | None, limit: int
    ) -> None: ...
    def room_create(self, ticket: Ticket[st.Room | None], room: bytes) -> None: ...
    def room_delete(self, ticket: Ticket[bool], room: bytes, as_node: bool) -> None: ...
    def history(
        self,
        ticket: Ticket[tuple[bool, Rows[types.HistoryRow]]],
        room: bytes,
        count: int,
        after: st.Position | None,
        topic: bytes | None,
        as_node: bool,
    ) -> None: ...
    def busiest_rooms(self, ticket: Ticket[Rows[types.BusyRoom]], limit: int) -> None: ...
    def members(self, ticket: Ticket[tuple[int, Rows[types.Member]]], room: bytes) -> None: ...
    def occupancy(self, ticket: Ticket[tuple[list[tuple[str, int]], int, int]], room: bytes) -> None: ...
    def trace_start(
        self, ticket: Ticket[bool], number: int, topic: bytes, records: int, ms: int, every: int
    ) -> None: ...
    def trace_steps(self, ticket: Ticket[Json[st.TraceSteps]], number: int) -> None: ...
    def trace_end(self, ticket: Ticket[bool], number: int) -> None: ...
    def consumers(self, ticket: Ticket[Rows[types.Consumer]]) -> None: ...
    def forget_consumer(self, ticket: Ticket[bool], group: bytes, topic: bytes) -> None: ...
    # Clients and figures.
    def clients(
        self,
        ticket: Ticket[Json[list[st.Client]]],
        sort: str,
        limit: int,
        client: int | None,
        client_ids: Sequence[str],
    ) -> None: ...
    def client_kill(self, ticket: Ticket[bool], client: int, reason: str) -> None: ...
    def sessions(
        self, ticket: Ticket[Json[list[st.Session]]], limit: int, after: str | None, client_id: str | None
    ) -> None: ...
    def session_end(self, ticket: Ticket[bool], client_id: str) -> None: ...
    def metrics(self) -> st.Metrics: ...
    def inflight_store(self) -> Json[st.Store] | None: ...
    def redis_cluster_nodes(self, nodes: Sequence[types.RedisClusterNode]) -> None: ...
    # The log.
    def log(self) -> Json[st.Log] | None: ...
    def log_archived(self, offsets: Mapping[int, int]) -> None: ...
    def log_hub_of(self, room: bytes) -> tuple[str, int | None]: ...
    def open_hub(self, ticket: Ticket[Json[st.Hub]], hub: int, room_class: str, index: int) -> None: ...
    def close_hub(self, ticket: Ticket[int | None], hub: int) -> None: ...
    def log_open(self, ticket: Ticket[int], scan: st.Scan) -> None: ...
    def log_next(self, ticket: Ticket[bytes | None], stream: int) -> None: ...
    def log_close(self, stream: int) -> None: ...
    def log_offset(self, ticket: Ticket[int], hub: int, timestamp_us: int) -> None: ...
    # Links and leader leases. All of `lead_…` needs `link_begin`; times are those of `clock_us`.
    def link_begin(self, cluster: str, node: str, incarnation: int, secret: bytes) -> None: ...
    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None: ...
    def link_peers(self) -> list[st.Peer]: ...
    def link_status(self, classes: int) -> None: ...
    def link_ask(self, ticket: Ticket[bytes], node: str, body: bytes) -> None: ...
    def link_answer(self, node: str, number: int, body: bytes) -> None: ...
    def clock_us(self) -> int: ...
    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None: ...
    def lead_voters(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None: ...
    def lead_tables(
        self,
        ticket: Ticket[object],
        controller_term: int,
        until_us: int,
        confirmed_us: int,
        tables: Sequence[tuple[str, int, Sequence[st.HubTerm]]],
        voters_revision: int,
    ) -> None: ...
    def lead_resign(self, ticket: Ticket[object], controller_term: int) -> None: ...
    def lead_snapshot(self) -> dict[str, Any]:
        """`node.LeaseSnapshot` of a moment a few ms ago at most, with times in µs, and `peers` as a list of dicts."""
    # Classes, hubs and rooms of the cluster.
    def route_classes(self, rows: Sequence[tuple[Mapping[str, Any], int, int, str]]) -> None:
        """Rows of definition, version, number of hubs, `ring` or `least-busy`."""

    def route_hubs(self, rows: Sequence[tuple[int, str, int, int, tuple[str, int] | None]]) -> None:
        """Rows of id, class, index in it, term, node and incarnation of the leader or None."""

    def route_serves(self, hubs: Sequence[int]) -> None: ...
    def route_rooms(self, room_class: str, hubs: Sequence[tuple[bytes, int | None]]) -> None: ...
    def route_refuse(self, rooms: Sequence[bytes], code: str) -> None: ...
    def route_absent(self, rooms: Sequence[bytes]) -> None: ...
    def route_unused(
        self, ticket: Ticket[list[bytes]], hub: int, term: int, rooms: Sequence[bytes], gives_up: bool
    ) -> None: ...
    def route_located(self, number: int, members: Sequence[tuple[str, str]] | None, code: str) -> None: ...
    def route_of(self, topic: bytes) -> tuple[bytes, str, int]: ...
    def route_ready(self) -> list[tuple[str, int]]: ...

@final
class Coordinator:
    """A node of the embedded coordinator, on a thread of its own; `hubsub.coordination.embedded` describes it.

    A refused event has a code and a message; only the code `unknown_outcome` means that something may have been
    changed. A request that is not accepted raises RuntimeError of code and message.
    """

    def __new__(cls, setup: Mapping[str, Any]) -> Self:
        """Starts it; returns when it has joined or bootstrapped its cluster. Releases the interpreter. OSError: it
        cannot listen. RuntimeError: code and message.
        """

    def wake_fd(self) -> int: ...
    def drain(self, answers_max: int) -> list[tuple[Any, ...]]: ...
    def failed(self) -> str | None:
        """Why it has failed for good, or None; waiting requests are then never answered. It triggers a wake-up."""

    def get(self, ticket: Ticket[tuple[bytes, int] | None], key: str) -> None: ...
    def page(self, ticket: Ticket[st.Listed], directory: str, after: str | None, limit: int) -> None: ...
    def commit(
        self,
        ticket: Ticket[st.Committed],
        expect: Sequence[tuple[str, int]],
        writes: Sequence[tuple[str, bytes | None, int | None]],
    ) -> None: ...
    def grant(self, ticket: Ticket[int], ttl_ms: int) -> None: ...
    def renew(self, ticket: Ticket[None], lease: int) -> None: ...
    def release(self, ticket: Ticket[int], lease: int) -> None: ...
    def watch(
        self, ticket: Ticket[st.Watched], directory: str, cursor: st.Cursor | None, wait_ms: int
    ) -> None: ...
    def leave(self, ticket: Ticket[None], node: int) -> None: ...
    def status(self, ticket: Ticket[st.CoordinatorStatus]) -> None: ...
    def stop(self) -> None:
        """Waits for its thread. The outcome of unanswered requests is unknown. Releases the interpreter."""
