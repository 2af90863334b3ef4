"""The whole interface between Python and the Rust core.

No function here is called per message. Requests are put into a shard's mailbox and return at once; answers,
log lines and state changes come back as events, which `drain` returns in batches after `wake_fd` became
readable.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Self, final

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
BUILD_PROFILE: Final[str]
"""`debug`, `release` or `dist`: benchmarks refuse `debug`."""

def limits_default() -> dict[str, int]:
    """Name and default of every limit of the data plane."""

def error_codes() -> list[tuple[str, str, bool]]:
    """`(code, Redis error line, retryable)` of every refusal."""

def room_of(classes: Sequence[Mapping[str, Any]], hash_tags: bool, topic: bytes) -> tuple[bytes, str]:
    """Room of a topic and the name of its class, as the data plane resolves it.

    Args:
        classes: As in the configuration of `Core`.
        hash_tags: Whether hash tags name rooms.
        topic: The topic.

    Raises:
        ValueError: a class has a pattern or template that cannot be read.
    """

def log_manifest(directory: str | PathLike[str]) -> dict[str, Any]:
    """Metadata of a log that no node uses; no record is read.

    Returns:
        `format`, `identity` (hexadecimal), `cluster` (id of the one that numbers its hubs, or None), `clean`
        (whether the node ended cleanly), `checkpoint` (frame up to which segments hold everything),
        `journals` (first and last), and `hubs`: dicts of `hub`, `class`, `index`, `segments`, `bytes`,
        `earliest`, `next`, `continuous_from` (rooms whose last record is below this offset begin a new
        epoch), `lost` (pairs of first and last offset), `quarantined` (reason, or None).

    Raises:
        OSError: a node uses it, it cannot be read, its manifest is missing or damaged, or it is of a newer
            format.
    """

def log_verify(
    directory: str | PathLike[str], progress: Callable[[int, int], object] | None
) -> dict[str, Any]:
    """Reads every record of a log that no node uses, and changes nothing.

    Args:
        directory: Directory of the log.
        progress: Called with the bytes read so far and those of all segments; an exception in it ends the
            call.

    Returns:
        `problems` (sentences), `journal_records`, and `hubs`: as in `log_manifest`, with `records` (in
        segments), `journal_records` (after those), `next` after all of them, and `problems`.

    Raises:
        OSError: as `log_manifest`.
    """

def log_show(
    directory: str | PathLike[str],
    hub: int | None,
    room: bytes | None,
    first: int,
    count: int | None,
    take: Callable[[list[dict[str, Any]]], object],
) -> list[str]:
    """Passes the records of a log that no node uses to `take`, in batches, in order of hub and offset.

    Each record is a dict of `hub`, `offset`, `term`, `epoch`, `seq`, `timestamp_us`, `kind` (`message`, `room
    deleted` or `tombstone`), `room`, `topic`, `publisher`, `producer` and `sequence` (None without a
    producer), `headers`, `payload`.

    Args:
        directory: Directory of the log.
        hub: Only this hub; None: all.
        room: Only this room; None: all.
        first: First offset.
        count: Most records; None: no limit.
        take: Called with each batch.

    Returns:
        Descriptions of unreadable parts.

    Raises:
        OSError: as `log_manifest`, or there is no such hub.
    """

def log_repair(
    directory: str | PathLike[str],
    hub: int | None,
    accept_loss: bool,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]:
    """Repairs the hubs of a log that no node uses.

    Args:
        directory: Directory of the log.
        hub: Only this hub; None: all.
        accept_loss: Whether to change files; else the repair is only planned.
        progress: As in `log_verify`.

    Returns:
        `problems`, `manifest` (why it is written again, or None), `done`, `left` (remaining problems), and
        `hubs`: dicts of `hub`, `class`, `problems`, `kept`, `kept_from_journals`, `lost` (pairs of first and
        last offset), `unknown_from` (offset or None), `earliest`, `next`, `set_aside` (paths).

    Raises:
        OSError: as `log_manifest`; there is no such hub; or the manifest cannot be written again.
    """

@final
class RowReader:
    """Reads an Arrow IPC stream of rows. Errors are a `ValueError` of a code and a text."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes the stream's next bytes; returns the full chunks: number of rows, and bytes."""

    def finish(self) -> tuple[int, bytes] | None:
        """Ends the stream; returns the last chunk, if any."""

@final
class Core:
    """A node's data plane: its shards and their threads.

    A method with a `ticket` returns at once. `Answer:` describes the value of its `answer` event.
    """

    def __new__(cls, config: Mapping[str, Any]) -> Self:
        """Checks the configuration; starts nothing.

        Args:
            config: `node` (str), `incarnation` (int, 32 bits), `shards` (int, 1 to 64), `redis`,
                `redis_cluster`, `mqtt`, `ws` and `link` (`HOST:PORT` or None), `ws_origins`, `hosts` and
                `phoenix_topics` (list of str), `mqtt_strict`, `mqtt_long_ids` and `mqtt_wills_recorded`
                (bool), `accepts` (whether clients are accepted at once), `advertise` (host for clients, None
                for the bound address), `hash_tags` (bool), `limits` (name to int, all of them), `classes`
                (list of dicts: `name`, `match` (list of str, empty matches all), `room` and `device` (str or
                None), `history` (None or dict of `messages`, `bytes`, `age_ms`, `archive_wait`), `on_slow`,
                `on_gap`, `share_strategy`, `payload_bytes_max`, `idle_ms`, `browser_events`, `presence`,
                `presence_records`, `occupancy_records`, `commit_delay_ms`), `log` (None, or directory,
                identity for a new log, and None if the node numbers its hubs itself, else the cluster's id
                and whether hubs that the node has numbered become the cluster's), `inflight_store`
                (`("log",)`, `("memory",)`, `("disk", FILE)` or `("redis", URL, NAME)`).

        Raises:
            ValueError: a key is missing, unknown or out of range; the message names it.
        """

    def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards.

        Returns:
            Listener (`redis`, `redis_cluster`, `mqtt`, `ws`, `link`) to its bound `HOST:PORT`, or None if
            off.

        Raises:
            OSError: an address cannot be bound, which is `filename` then; or there is another reason.
        """

    def wake_fd(self) -> int:
        """Descriptor that is readable while events wait; the core owns it."""

    def drain(self, events_max: int) -> list[tuple[Any, ...]]:
        """Takes up to `events_max` events and clears the descriptor when none is left.

        Returns:
            In order of arrival, each one of
            `("answer", ticket, value)`, `("refused", ticket, code, message)` (for streams with two more: the
            value concerned, and None or the first missing offset and the first one after the gap),
            `("log", level, message, fields)` with level `debug|info|warning|error`,
            `("link", kind, node, incarnation, code, text)` with kind `up|suspected|heard|down|refused|dead`;
            code and text are None except for `down` and `refused`,
            `("lead", kind, hub, term, mandate)` with kind `opened|closed` (this process's leader lease),
            `began|gave_up` (its shard leads a hub in a term, or has stopped), `heeds` (acknowledges that
            controller term from now on, 0 for none), `changed` (another part of `lead_snapshot`, except
            times); fields without meaning for the kind are None,
            `("ready",)`: `route_ready` has changed, `("room_miss", room_class, room, makes)`: answer by
            `route_rooms`, `route_refuse` or, if no place is needed, `route_absent`,
            `("locate", number, room)`: answer by `route_located`,
            `("asked", node, number, body)`: request of a peer's control plane, answer by `link_answer`,
            `("parted", shard)` after `part_from_sessions`,
            `("stopped", shard, reason)` with reason None after a clean stop.
        """

    def publish(
        self,
        ticket: int,
        items: Sequence[tuple[bytes, bytes, Mapping[str, str], str, tuple[int, int] | None]],
        as_node: bool,
    ) -> None:
        """Publishes records in order. Answer: a list as long as `items` of `(receivers, epoch, seq,
        is_duplicate)` or `(code, message)`; epoch and seq are 0 if no room stored the record.

        Args:
            ticket: The ticket.
            items: `(topic, payload, headers, publisher, (producer, sequence) | None)`.
            as_node: Whether names that begin with `$` are allowed.
        """

    def row_reader(self, topic: bytes | None, publisher: str) -> RowReader:
        """Reads a stream of rows. A topic here applies to all rows, which then have no column for it; the
        publisher to rows without one.
        """

    def publish_rows(
        self,
        ticket: int,
        chunk: bytes,
        left: Sequence[int] | None,
        of: Sequence[int] | None,
        producer: int,
    ) -> None:
        """Publishes the rows of a chunk. Answer: the number of rows published before, and `(n, code,
        message)` of refused ones.

        Args:
            ticket: The ticket.
            chunk: As returned by `RowReader`.
            left: Places of the rows to publish, rising; None: all.
            of: Places of the rows that the producer numbers, rising; None: all. In a class with a log those
                of each room have their own gapless sequence.
            producer: Id of the producer.
        """

    def room(self, ticket: int, room: bytes) -> None:
        """Answer: None or a dict of `name` (bytes), `class`, `epoch`, `seq`, `shard`, `hub`, `in_memory`,
        `subscribers`, `topics`, `history` (records), `history_bytes`, `first_seq`, `idle_ms`; the last four
        are None for a room that is only in the log.
        """

    def rooms(self, ticket: int, match: bytes | None, after: bytes | None, limit: int) -> None:
        """Answer: up to `limit` dicts as of `room`, in order of name, after `after`."""

    def room_create(self, ticket: int, room: bytes) -> None:
        """Answer: the room's dict; the room is created if it does not exist and its class has a history."""

    def room_delete(self, ticket: int, room: bytes, as_node: bool) -> None:
        """Answer: True if it existed. Refused `room_in_use` while it has subscribers."""

    def history(
        self,
        ticket: int,
        room: bytes,
        count: int,
        after: tuple[int, int] | None,
        topic: bytes | None,
        as_node: bool,
    ) -> None:
        """Answer: `(recovered, rows)`; rows oldest first, each `(epoch, seq, timestamp_us, topic, publisher,
        payload, headers)`.

        Args:
            ticket: The ticket.
            room: Name of the room.
            count: Most records.
            after: Position to start after; `recovered` is False if it is unknown. None: the last `count`
                records.
            topic: Only records of this topic.
            as_node: Whether internal rooms may be read.
        """

    def clients(
        self, ticket: int, sort: str, limit: int, client: int | None, client_ids: Sequence[str]
    ) -> None:
        """Answer: dicts of `id`, `shard`, `addr`, `laddr`, `name` (MQTT: the client id), `lib_name`,
        `lib_ver`, `protocol`, `age_s`, `idle_s`, `subscriptions`, `patterns`, `pending_bytes`,
        `keep_alive_s`, `inflight`, `inflight_max`, `waiting` (these four for MQTT, else 0), `dropped`,
        `lagging`, `messages_in`, `messages_out`, `bytes_in`, `bytes_out`, and each of those four with `_1s`
        and `_60s` (rates per second).

        Args:
            ticket: The ticket.
            sort: Field to sort by, largest first.
            limit: Most clients.
            client: Only this id.
            client_ids: Only MQTT clients with one of these ids; empty: all.
        """

    def client_kill(self, ticket: int, client: int, reason: str) -> None:
        """Answer: True if there was one."""

    def sessions(self, ticket: int, limit: int, after: str | None, client_id: str | None) -> None:
        """Answer: dicts of `client_id`, `shard`, `client` (id of the connection, or None), `expiry_s` and
        `ends_in_s` (or None), `subscriptions`, `unacknowledged`, `queued`, `queued_bytes`, `dropped`, in
        order of client id.
        """

    def session_end(self, ticket: int, client_id: str) -> None:
        """Answer: True if there was one."""

    def busiest_rooms(self, ticket: int, limit: int) -> None:
        """Answer: `(room, messages, bytes in, bytes out)`, per second, of the busiest, from the shards'
        sketches. Bytes are those of topic and payload; out counts each subscriber.
        """

    def members(self, ticket: int, room: bytes) -> None:
        """Answer: the number of members of a room in the whole cluster, and `(key, reference, meta as JSON)`
        of the listed ones, by key. Refused `timed_out` if no node answers.
        """

    def occupancy(self, ticket: int, room: bytes) -> None:
        """Answer: counts of a room on this node: `(protocol, subscriptions)` of each protocol, publishers and
        members.
        """

    def consumers(self, ticket: int) -> None:
        """Answer: `(group, topic, (epoch, seq), lag, given, members)` of each consumer group whose room this
        node leads, by name; see `node.Consumer`.
        """

    def forget_consumer(self, ticket: int, group: bytes, topic: bytes) -> None:
        """Answer: True if it was known here."""

    def metrics(self) -> dict[str, Any]:
        """Current counters and gauges: `{"shards": [{name: int}, …], "node": {name: int}}`."""

    def inflight_store(self) -> dict[str, Any] | None:
        """State of the session store; None if it is neither a file nor a server.

        Returns:
            A dict of `state` (`open|away`), `reason` (str or None) and `figures` (name to int, as `log`'s).
        """

    def log(self) -> dict[str, Any] | None:
        """State of the log; None if no class has one.

        Returns:
            A dict of `state` (`open|full|failed`), `identity` (hexadecimal), `reason` (str or None),
            `figures` (name to int; counters end in `_total`), `syncs` (a histogram: upper bound in µs, None
            for the last, and number of syncs), `hubs` (by id, dicts of `id`, `class`, `index`, `durability`,
            `shard`, `state` (as the log's, `damaged` or `quarantined`), `reason`, `damaged` (the unreadable
            part, or None), `opened` (offset after the last when it was opened), `earliest`, `latest`,
            `committed` and `synced` (offsets), `bytes`, `segments`, `rooms`, `index_bytes`, `first_us` and
            `last_us`, 0 without records, `deliveries`, `bytes_in` and `bytes_out` (since the start, of
            committed records, topic and payload; out counts each subscriber), `archived` (offset; 0 without a
            report), `archive_waiting_bytes`, `archive_lost`).
        """

    def log_archived(self, offsets: Mapping[int, int]) -> None:
        """Hub to the first offset that is not archived: retention need not wait for earlier ones."""

    def log_hub_of(self, room: bytes) -> tuple[str, int | None]:
        """Name of a room's class, and the id of the hub that logs its records, if there is one."""

    def open_hub(self, ticket: int, hub: int, room_class: str, index: int) -> None:
        """Opens a hub while the node runs; creates it if it does not exist here, on disk before the answer.

        Args:
            ticket: The ticket.
            hub: Its id in the whole cluster, from 1.
            room_class: Name of a class with a log.
            index: Its index among the class's hubs, from 0.

        Answer: the hub's dict as of `log`; an open hub does not change. Refused with `hub_differs` (the id,
        or the class's index, is another hub's here), `disk_full`, `quarantined`, `hub_closed` (it is being
        closed), `log_failed`; the value names it.

        Raises:
            ValueError: the id is 0, or the node does not know the class or has no log for it.
            RuntimeError: no class has a log.
        """

    def close_hub(self, ticket: int, hub: int) -> None:
        """Closes a hub, which stays on disk. Further records are refused (`hub_closed`); accepted ones are
        committed and safe in its segments before the answer: the last offset that it assigned, 0 if it has no
        record, None if it was not open. On a full disk it waits for space.
        """

    def log_open(self, ticket: int, scan: Mapping[str, Any]) -> None:
        """Answer: the number of a stream of a hub's records; read it by `log_next`, end it by `log_close`.

        Args:
            ticket: The ticket.
            scan: `hub` (id), `from` and `until` (offsets or None: all retained and committed ones), `rooms`,
                `topics` and `devices` (lists of bytes), `room_prefix` and `topic_prefix` (bytes),
                `room_patterns` and `topic_filters` (lists of patterns as of classes), `since_us`, `until_us`
                (int or None), `columns` (names), `lz4` (bool), `batch_rows`, `batch_bytes`. An empty
                condition is ignored.

        Raises:
            ValueError: a key is missing or unknown, or a pattern cannot be read.
        """

    def log_next(self, ticket: int, stream: int) -> None:
        """Answer: the next bytes of the Arrow IPC stream; None after its end."""

    def log_close(self, stream: int) -> None:
        """Ends a stream, if it is open."""

    def log_offset(self, ticket: int, hub: int, timestamp_us: int) -> None:
        """Answer: the hub's first offset with that timestamp or a later one; else the first that is not
        committed.
        """

    def redis_cluster_nodes(self, nodes: Sequence[tuple[str, str, str, int]]) -> None:
        """Distributes the slots of Redis cluster clients over these nodes: `(name, id, host, port)`, with an
        id of 40 hexadecimal digits and an empty host for the one that the client connected to. Until the
        first call no slot is served. Clients are notified if their shard channels move to another node.

        Raises:
            ValueError: two nodes have the same name, an id is invalid, or there are more nodes than slots.
        """

    def accept(self) -> None:
        """Accepts clients from now on, including those that have waited since the start."""

    def part_from_sessions(self) -> None:
        """Disconnects MQTT clients from recorded sessions, before the node leaves its cluster; new clients
        are refused. Each shard sends ("parted", shard) when that is done.
        """

    def link_begin(self, cluster: str, node: str, incarnation: int, secret: bytes) -> None:
        """Sets this node's identity: links are accepted and dialed from now on.

        Args:
            cluster: Id of the cluster.
            node: Name of the node.
            incarnation: As issued when the node registered.
            secret: The cluster's secret.

        Raises:
            ValueError: a name is too long or empty, or the secret is empty.
            RuntimeError: there is no listener for links.
        """

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        """Sets all `(name, incarnation, addresses, shards)` that may have links; the same list again changes
        nothing. Addresses are `IP:PORT`. Links with others end.

        Raises:
            ValueError: an address or a name is invalid.
        """

    def link_peers(self) -> list[dict[str, Any]]:
        """By name, dicts of `node`, `id` (of this process, never reused), `incarnation`, `addresses`, and
        `links`: dicts of `state` (`waiting|dialing|up|suspected|refused`), `code` and `text` (why it last
        ended, or None), `heard_ms` (ago, or None), `round_trip_us`, `offset_us` (how far the peer's clock is
        ahead), `offset_error_us` (None before they are known), `mandate`, `heeds` and `classes` (its last
        values: its own controller term, the acknowledged controller term, 0 for none, and the version of its
        classes), and totals: `frames_in`, `bytes_in`, `bytes_out`, `dropped_bytes`, `suspicions`, and `sent`
        (frames), `sent_bytes`, `refused` (frames), each of these a dict of `urgent`, `live`, `reads`.
        """

    def link_status(self, classes: int) -> None:
        """Sets the version of this node's classes, which peers receive."""

    def link_ask(self, ticket: int, node: str, body: bytes) -> None:
        """Answer: the answer of the peer's control plane. Refused `not_linked`, `link_full`, or `link_lost`:
        it may have been carried out.
        """

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        """Answers an `asked` event."""

    def clock_us(self) -> int:
        """The node's clock: monotonic, since its start. Times of `lead_…` refer to it."""

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        """Sets all `(hub, term, gives_up)` whose records name this process as the leader: it claims leader
        leases of those that it is not to give up. Like all of `lead_…`, it requires `link_begin`; another
        incarnation begins without any.
        """

    def lead_census(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None:
        """Sets the voters.

        Args:
            revision: Revision of the record.
            nodes: The voters.
            before: The previous voters, while the set changes.

        Raises:
            ValueError: this process has met 65,535 names.
        """

    def lead_tables(
        self,
        ticket: int,
        mandate: int,
        until_us: int,
        confirmed_us: int,
        tables: Sequence[tuple[str, int, Sequence[tuple[int, int]]]],
        census: int,
    ) -> None:
        """Answer: any value, once nothing is granted by earlier tables and `lead_snapshot` shows these.

        Args:
            ticket: The ticket.
            mandate: The controller term, from 1; tables of an earlier one change nothing.
            until_us: End of the controller's lease at the coordinator; nothing is granted after it. A time in
                the past ends the controller term.
            confirmed_us: A time at or after which the coordinator had this controller term. The term lasts
                for one leader lease from the last such time, or from the last time at which a majority of the
                voters acknowledged it without a break since then.
            tables: Node, incarnation, and the `(hub, term)` pairs that it may be granted.
            census: Revision of the voters that grants name.

        Raises:
            ValueError: the controller term is 0, or as `lead_census`.
        """

    def lead_resign(self, ticket: int, mandate: int) -> None:
        """Ends a controller term. Answer: as of `lead_tables`."""

    def lead_snapshot(self) -> dict[str, Any]:
        """The input of a controller's decisions, at one moment a few ms ago at most.

        Returns:
            A dict of `now_us` (that moment), `mandate` (the controller term, 0: none), `confirmed_us` (its
            last confirmation), `alone_us` (when a majority last had no controller; None: this process has
            one), `census` and `census_us` (the revision that grants name, and since when), `until_us` (end of
            this process's own leader lease), `heeds` (the controller term that it acknowledges, 0 for none),
            and `peers`: of each process that was heard, this one too, a dict of `node`, `incarnation`,
            `heard_us`, `heeds_us` and `heeds_until_us` (since and until when it is known to acknowledge this
            controller term, or None), `lead_until_us` (end of the last leader lease granted to it in this
            controller term, or None), `gave_up` (pairs of hub and term), `suspects` (names).
        """

    def route_classes(self, rows: Sequence[tuple[Mapping[str, Any], int, int, str]]) -> None:
        """Sets all classes in order of precedence: definition, version, hubs in the cluster, `ring` or
        `least-busy`.

        Raises:
            ValueError: a class has no hub, or another number of hubs or another placement than before, an
                unknown placement, or the last one does not match all.
        """

    def route_hubs(self, rows: Sequence[tuple[int, str, int, int, tuple[str, int] | None]]) -> None:
        """Sets all hubs: id, class, index in it, term, node and incarnation of the leader or None. After
        `link_begin` nothing is served before all of them were set once.

        Raises:
            ValueError: an id or a term is 0.
        """

    def route_serves(self, hubs: Sequence[int]) -> None:
        """Sets all hubs that this process serves without a leader lease; `route_hubs` must name it as their
        leader.
        """

    def route_rooms(self, room_class: str, hubs: Sequence[tuple[bytes, int | None]]) -> None:
        """Sets the hubs of some rooms of a class; None: the ring decides, or the hub is to be looked up
        again.

        Raises:
            ValueError: the node does not know the class.
        """

    def route_refuse(self, rooms: Sequence[bytes], code: str) -> None:
        """Rooms of `room_miss` events get no place: waiting requests are refused with this code.

        Raises:
            ValueError: there is no such code.
        """

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Rooms of `room_miss` events that need no place have none: waiting requests are answered
        accordingly.
        """

    def route_unused(self, ticket: int, hub: int, term: int, rooms: Sequence[bytes], gives_up: bool) -> None:
        """Answer: the unused ones of these rooms, which have neither subscribers nor records in memory.

        Args:
            ticket: The ticket.
            hub: Id of their hub, without a log, which this process leads.
            term: Term of the hub.
            rooms: Their names.
            gives_up: Whether this node forgets the place of the unused ones.
        """

    def route_located(self, number: int, members: Sequence[tuple[str, str]] | None, code: str) -> None:
        """Answers a `locate` event: names and Redis addresses, leader first; None: refused with this code.

        Raises:
            ValueError: there is no such code.
        """

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Room, class, and the index of its hub in the ring."""

    def route_ready(self) -> list[tuple[str, int]]:
        """Nodes and incarnations of the processes that have reported to be ready, this one included."""

    def reload(self, limits: Mapping[str, int]) -> None:
        """Sets the limits; those of mailboxes and of the route cache stay as at the start."""

    def stop(self, grace_ms: int) -> None:
        """Stops accepting, drains output for `grace_ms`, closes. One `stopped` event per shard."""

    def join(self) -> None:
        """Waits for shards that stop, then ends the log cleanly. Releases the interpreter."""

@final
class Coordinator:
    """A node of the embedded coordinator, on a thread of its own.

    Requests answer as events of `drain`: `("answer", ticket, value)` or `("refused", ticket, code, message)`,
    where only the code `unknown_outcome` means that something may have been changed. A request that is not
    accepted raises RuntimeError of code and message.
    """

    def __new__(cls, setup: Mapping[str, Any]) -> Self:
        """Starts it; returns when it has joined or bootstrapped its cluster. Releases the interpreter.

        Args:
            setup: `directory`, `node` (name), `listen` (HOST:PORT), `advertise` (host or None: as bound),
                `join` (HOST:PORT of members; none: it bootstraps a cluster, unless its directory belongs to
                one), `join_ms` (for all of them), `secret` (bytes), `voters_max` (3 or 5), `request_ms`,
                `away_ms` (a voter that is silent for this long loses its vote to a learner, and its name to a
                node that requests it), `detours` (address to address).

        Raises:
            OSError: it cannot listen.
            RuntimeError: code and message.
        """

    def wake_fd(self) -> int: ...
    def drain(self, answers_max: int) -> list[tuple[Any, ...]]: ...
    def failed(self) -> str | None:
        """Why it has failed for good (its disk, a panic), or None: waiting requests are then never answered.
        A failure triggers a wake-up.
        """

    def get(self, ticket: int, key: str) -> None:
        """Answer: value and revision, or None."""

    def page(self, ticket: int, directory: str, after: str | None, limit: int) -> None:
        """Answer: rows of name, value and revision, and whether there are more."""

    def commit(
        self,
        ticket: int,
        expect: Sequence[tuple[str, int]],
        writes: Sequence[tuple[str, bytes | None, int | None]],
    ) -> None:
        """Answer: `("committed", revisions)`, `("mismatch", place in expect, revision)` or `("no_lease",
        lease)`.

        Args:
            ticket: The ticket.
            expect: Key and revision; 0: the key must not exist.
            writes: Key, value (None deletes), lease.
        """

    def grant(self, ticket: int, ttl_ms: int) -> None:
        """Answer: the id of the lease."""

    def renew(self, ticket: int, lease: int) -> None: ...
    def release(self, ticket: int, lease: int) -> None: ...
    def watch(self, ticket: int, directory: str, cursor: tuple[int, str | None] | None, wait_ms: int) -> None:
        """Answer: whether a complete directory begins, whether it ends, rows (value None: deleted), the next
        cursor.

        Args:
            ticket: The ticket.
            directory: The directory.
            cursor: From the last answer; None: the complete directory.
            wait_ms: Answers without rows after this time.
        """

    def leave(self, ticket: int, node: int) -> None:
        """Removes a member from the cluster for good, this one or another."""

    def status(self, ticket: int) -> None:
        """Answer: `node`, `cluster` (hexadecimal), `term`, `leader` or None, `members` (number to name,
        address and whether it votes), `applied`, `log_bytes`, `store_bytes`, `store_bytes_max`, `failed` or
        None.
        """

    def stop(self) -> None:
        """Waits for its thread. The outcome of unanswered requests is unknown. Releases the interpreter."""
