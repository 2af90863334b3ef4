"""The whole of what crosses between Python and the Rust core.

Nothing here is called per message. Requests are put into a shard's mailbox and
return at once; answers, log lines and state changes come back as events that
`drain` hands over in batches after `wake_fd` became readable.
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

    Raises:
        ValueError: a class has a pattern or template that cannot be read.
    """

def log_manifest(directory: str | PathLike[str]) -> dict[str, Any]:
    """What a log that no node uses says of itself; no record is read.

    Returns:
        `format`, `identity` (hexadecimal), `cluster` (id of the one that numbers its hubs, or None), `clean` (whether
        the node ended cleanly), `checkpoint` (frame up to which segments hold everything), `journals` (first and
        last), and `hubs`: dicts of `hub`, `class`,
        `index`, `segments`, `bytes`, `earliest`, `next`, `continuous_from` (rooms whose last record is below
        this offset begin a new epoch), `lost` (pairs of first and last offset), `quarantined` (why, or None).

    Raises:
        OSError: a node uses it, it cannot be read, its manifest is missing or damaged, or it is of a newer format.
    """

def log_verify(
    directory: str | PathLike[str], progress: Callable[[int, int], object] | None
) -> dict[str, Any]:
    """Reads every record of a log that no node uses, and changes nothing.

    Args:
        directory: That of the log.
        progress: Called with the bytes that were read and those of all segments; what it raises ends it.

    Returns:
        `problems` (sentences), `journal_records`, and `hubs`: as of `log_manifest`, with `records` (in
        segments), `journal_records` (behind those), `next` behind all of them, and `problems`.

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
    """Gives the records of a log that no node uses to `take`, some at a time, in order of hub and offset.

    Each is a dict of `hub`, `offset`, `term`, `epoch`, `seq`, `timestamp_us`, `kind` (`message`,
    `room deleted` or `tombstone`), `room`, `topic`, `publisher`, `producer` and `sequence` (None where
    nobody numbered it), `headers`, `payload`.

    Returns:
        What could not be read, in sentences.

    Raises:
        OSError: as `log_manifest`, or there is no such hub.
    """

def log_repair(
    directory: str | PathLike[str],
    hub: int | None,
    accept_loss: bool,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]:
    """Mends the hubs of a log that no node uses, or one of them; without `accept_loss` it changes nothing.

    Returns:
        `problems` (what is wrong), `manifest` (why it is made again, or None), `done`, `left` (what is still
        wrong), and `hubs`: dicts of `hub`, `class`, `problems`, `kept`, `kept_from_journals`, `lost` (pairs of
        first and last offset), `unknown_from` (offset or None), `earliest`, `next`, `set_aside` (paths).

    Raises:
        OSError: as `log_manifest`; there is no such hub; or the manifest cannot be made again.
    """

@final
class RowReader:
    """Reads an Arrow IPC stream of rows. What is wrong is a `ValueError` of a code and a text."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes the stream's next bytes; gives the chunks that are full: number of rows, and bytes."""

    def finish(self) -> tuple[int, bytes] | None:
        """The last chunk."""

@final
class Core:
    """A node's data plane: its shards and their threads."""

    def __new__(cls, config: Mapping[str, Any]) -> Self:
        """Checks the configuration; starts nothing.

        Args:
            config: `node` (str), `incarnation` (int, 32 bits), `shards` (int, 1 to 64),
                `redis`, `redis_cluster`, `mqtt`, `ws` and `link` (`HOST:PORT` or None), `ws_origins`,
                `hosts` and `phoenix_topics` (list of str), `mqtt_strict`, `mqtt_long_ids` and
                `mqtt_wills_recorded` (bool), `accepts`
                (whether clients are accepted at once), `advertise` (host that clients are told, None for the bound
                address), `hash_tags` (bool), `limits` (name to int, all
                of them), `classes` (list of dicts: `name`, `match` (list of str, empty
                matches all), `room` and `device` (str or None), `history` (None or dict of
                `messages`, `bytes`, `age_ms`, `archive_wait`), `on_slow`, `on_gap`, `share_strategy`,
                `payload_bytes_max`, `idle_ms`, `browser_events`, `presence`, `presence_records`,
                `occupancy_records`, `commit_delay_ms`), `log` (None, or directory, identity of one that is
                made now, and None where the node numbers its hubs itself, else the cluster's id and whether
                hubs that the node has numbered are the cluster's), `inflight_store` (`("log",)`,
                `("memory",)`, `("disk", FILE)` or `("redis", URL, NAME)`).

        Raises:
            ValueError: a key is missing, unknown or out of range; the message names it.
        """

    def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards.

        Returns:
            Listener (`redis`, `redis_cluster`, `mqtt`, `ws`, `link`) to its bound `HOST:PORT`, or None if off.

        Raises:
            OSError: an address cannot be bound, which is `filename` then; or there is another reason.
        """

    def wake_fd(self) -> int:
        """Descriptor that is readable while events wait; the core owns it."""

    def drain(self, events_max: int) -> list[tuple[Any, ...]]:
        """Takes up to `events_max` events and clears the descriptor when none is left.

        Returns:
            In order of arrival, each one of
            `("answer", ticket, value)`, `("refused", ticket, code, message)` (of streams with two more:
            what it happened with, and None or the first missing offset and the one behind the last),
            `("log", level, message, fields)` with level `debug|info|warning|error`,
            `("link", kind, node, incarnation, code, text)` with kind `up|suspected|heard|down|refused|dead`; code
            and text are None but for `down` and `refused`,
            `("lead", kind, hub, term, mandate)` with kind `opened|closed` (this process's lead), `began|gave_up` (its
            shard leads a hub in a term, or does no more), `heeds` (that mandate from now on, 0 for none), `changed`
            (something else of `lead_snapshot`, but for times); what is not of the kind is None,
            `("ready",)`: `route_ready` has changed, `("room_miss", room_class, room, makes)`: `route_rooms`,
            `route_refuse` or, where no place is wanted, `route_absent` answers,
            `("locate", number, room)`: `route_located` answers,
            `("asked", node, number, body)`: a peer's control plane asks, `link_answer` answers,
            `("parted", shard)` after `part_from_sessions`,
            `("stopped", shard, reason)` with reason None after a clean stop.
        """

    def publish(
        self,
        ticket: int,
        items: Sequence[tuple[bytes, bytes, Mapping[str, str], str, tuple[int, int] | None]],
        as_node: bool,
    ) -> None:
        """Publishes `(topic, payload, headers, publisher, (producer, sequence) | None)` in order.
        As the node itself it may use names that begin with `$`.

        Answer: a list as long as `items` of `(receivers, epoch, seq, is_duplicate)` or
        `(code, message)`; epoch and seq are 0 where no room took the record.
        """

    def row_reader(self, topic: bytes | None, publisher: str) -> RowReader:
        """Reads a stream of rows. With a topic all are for that one, and have no column for it; those
        without a publisher get this one."""

    def publish_rows(
        self,
        ticket: int,
        chunk: bytes,
        left: Sequence[int] | None,
        of: Sequence[int] | None,
        producer: int,
    ) -> None:
        """Publishes the rows of a chunk, or those of `left`. In a class with a log each room's rows, of
        those in `of` (None: all), have a gapless sequence of their own. Places rise. Answer: how many
        were there already, and `(n, code, message)` of those that were refused.
        """

    def room(self, ticket: int, room: bytes) -> None:
        """Answer: None or a dict of `name` (bytes), `class`, `epoch`, `seq`, `shard`, `hub`,
        `in_memory`, `subscribers`, `topics`, `history` (records), `history_bytes`, `first_seq`,
        `idle_ms`; the last four are None for a room that only the log knows."""

    def rooms(self, ticket: int, match: bytes | None, after: bytes | None, limit: int) -> None:
        """Answer: up to `limit` dicts as of `room`, in order of name, behind `after`."""

    def room_create(self, ticket: int, room: bytes) -> None:
        """Answer: the room's dict, made if it was not there and its class keeps a history."""

    def room_delete(self, ticket: int, room: bytes, as_node: bool) -> None:
        """Answer: True if it was there. Refused `room_in_use` while it has subscribers."""

    def history(
        self,
        ticket: int,
        room: bytes,
        count: int,
        after: tuple[int, int] | None,
        topic: bytes | None,
        as_node: bool,
    ) -> None:
        """Answer: `(recovered, rows)`; rows oldest first, each `(epoch, seq, timestamp_us, topic,
        publisher, payload, headers)`. Without `after` the last `count`; with it, the first
        `count` behind that position, `recovered` False if that position is unknown."""

    def clients(
        self, ticket: int, sort: str, limit: int, client: int | None, client_ids: Sequence[str]
    ) -> None:
        """Answer: dicts of `id`, `shard`, `addr`, `laddr`, `name` (MQTT: the client id), `lib_name`, `lib_ver`,
        `protocol`, `age_s`, `idle_s`, `subscriptions`, `patterns`, `pending_bytes`, `keep_alive_s`, `inflight`,
        `inflight_max`, `waiting` (these four of MQTT, else 0), `dropped`, `lagging`,
        `messages_in`, `messages_out`, `bytes_in`, `bytes_out`, and each of those four with
        `_1s` and `_60s` (a second), largest `sort` first. With `client_ids` those of MQTT that have one of them."""

    def client_kill(self, ticket: int, client: int, reason: str) -> None:
        """Answer: True if there was one."""

    def sessions(self, ticket: int, limit: int, after: str | None, client_id: str | None) -> None:
        """Answer: dicts of `client_id`, `shard`, `client` (id of the connection, or None), `expiry_s` and `ends_in_s`
        (or None), `subscriptions`, `unacknowledged`, `queued`, `queued_bytes`, `dropped`, in order of client id."""

    def session_end(self, ticket: int, client_id: str) -> None:
        """Answer: True if there was one."""

    def busiest_rooms(self, ticket: int, limit: int) -> None:
        """Answer: `(room, messages, bytes in, bytes out)`, a second, of the busiest, from the shards' sketches.
        Bytes are those of topic and payload; out, for each subscriber."""

    def members(self, ticket: int, room: bytes) -> None:
        """Answer: how many members a room has in the whole cluster, and `(key, reference, meta as JSON)` of those that
        are listed, by key. Refused `timed_out` where nobody says who is there."""

    def occupancy(self, ticket: int, room: bytes) -> None:
        """Answer: how many of this node are in a room: `(protocol, subscriptions)` of each protocol, publishers and
        members."""

    def consumers(self, ticket: int) -> None:
        """Answer: `(group, topic, (epoch, seq), lag, given, members)` of each group that keeps its place in a room
        that is led here, by name; see `node.Consumer`."""

    def forget_consumer(self, ticket: int, group: bytes, topic: bytes) -> None:
        """Answer: True if it was known here."""

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges now: `{"shards": [{name: int}, …], "node": {name: int}}`."""

    def inflight_store(self) -> dict[str, Any] | None:
        """What the store of sessions tells now; None where it is no file and no server.

        Returns:
            A dict of `state` (`open|away`), `reason` (str or None) and `figures` (name to int, as `log`'s).
        """

    def log(self) -> dict[str, Any] | None:
        """What the log tells now; None where no class has one.

        Returns:
            A dict of `state` (`open|full|failed`), `identity` (hexadecimal), `reason` (str or None),
            `figures` (name to int; counters end in `_total`), `syncs` (of each stretch of time its upper
            bound in µs, None for the last, and how many syncs took so long), `hubs` (by id, dicts of `id`,
            `class`, `index`, `durability`, `shard`, `state` (as the log's, `damaged` or `quarantined`),
            `reason`, `damaged` (what of it cannot be read, or None), `opened` (offset behind the last when
            it was opened), `earliest`, `latest`, `committed` and `synced` (offsets), `bytes`, `segments`, `rooms`,
            `index_bytes`, `first_us` and `last_us`, 0 without records, `deliveries`, `bytes_in` and `bytes_out`
            (since the start, of committed records, topic and payload; out, for each subscriber), `archived`
            (offset; 0 where nothing was told), `archive_waiting_bytes`, `archive_lost`).
        """

    def log_archived(self, offsets: Mapping[int, int]) -> None:
        """Hub to the first offset that is not archived: retention need not wait for what is before it."""

    def log_hub_of(self, room: bytes) -> tuple[str, int | None]:
        """Name of a room's class, and the id of the hub that logs its records, if one does."""

    def open_hub(self, ticket: int, hub: int, room_class: str, index: int) -> None:
        """Opens a hub while the node runs; one that was never here is made, and safe before the answer.

        Args:
            hub: Its id, from 1, in the whole cluster.
            room_class: Name of a class with a log.
            index: Which of the class's hubs it is, from 0.

        Answer: the hub's dict as of `log`; what was open already stays as it is. Refused with `hub_differs` (the
        id, or the class's index, is another hub's here), `disk_full`, `quarantined`, `hub_closed` (it is
        being closed), `log_failed`; the value names it.

        Raises:
            ValueError: the id is 0, or the node does not know the class or keeps no log for it.
            RuntimeError: no class has a log.
        """

    def close_hub(self, ticket: int, hub: int) -> None:
        """Closes a hub, which stays on the disk. Records are refused from now on (`hub_closed`); those that were
        taken are committed and safe in its segments before the answer: the last offset that it gave out, 0 where it
        has no record, None where it was not open. On a full disk it waits for room.
        """

    def log_open(self, ticket: int, scan: Mapping[str, Any]) -> None:
        """Answer: the number of a stream of a hub's records, which `log_next` gives and `log_close` ends.

        Args:
            scan: `hub` (id), `from` and `until` (offsets or None: all that is kept and committed),
                `rooms`, `topics` and `devices` (lists of bytes), `room_prefix` and `topic_prefix` (bytes),
                `room_patterns` and `topic_filters` (lists of patterns as of classes), `since_us`,
                `until_us` (int or None), `columns` (names), `lz4` (bool), `batch_rows`, `batch_bytes`.
                What is empty asks for nothing.

        Raises:
            ValueError: a key is missing or unknown, or a pattern cannot be read.
        """

    def log_next(self, ticket: int, stream: int) -> None:
        """Answer: the next bytes of the Arrow IPC stream; None behind its end."""

    def log_close(self, stream: int) -> None:
        """Ends a stream, if it is there."""

    def log_offset(self, ticket: int, hub: int, timestamp_us: int) -> None:
        """Answer: the hub's first offset with that timestamp or a later one; the one behind what is committed."""

    def redis_cluster_nodes(self, nodes: Sequence[tuple[str, str, str, int]]) -> None:
        """Deals the slots of Redis cluster clients to these nodes: `(name, id, host, port)`, the id of 40
        hexadecimal digits, an empty host for the one that the client came to. Until the first call no slot
        is served. Clients whose shard channels are another node's now are told so.

        Raises:
            ValueError: two nodes have one name, an id is none, or there are more nodes than slots.
        """

    def accept(self) -> None:
        """Accepts clients from now on, those that wait since the start among them."""

    def part_from_sessions(self) -> None:
        """Parts MQTT clients from sessions that are recorded, before the node leaves its cluster; who comes is refused.
        Each shard tells ("parted", shard) when that is done."""

    def link_begin(self, cluster: str, node: str, incarnation: int, secret: bytes) -> None:
        """Says who this node is: links are accepted and dialed from now on.

        Raises:
            ValueError: a name is too long or empty, or the secret is empty.
            RuntimeError: there is no listener for links.
        """

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        """Sets all `(name, incarnation, addresses, shards)` that may have links; the same again changes nothing.
        Addresses are `IP:PORT`. Links with others end.

        Raises:
            ValueError: an address or a name cannot be.
        """

    def link_peers(self) -> list[dict[str, Any]]:
        """By name, dicts of `node`, `id` (of this process, never given out again), `incarnation`, `addresses`,
        and `links`: dicts of `state` (`waiting|dialing|up|suspected|refused`), `code` and `text` (why it ended
        the last time, or None), `heard_ms` (ago, or None), `round_trip_us`, `offset_us` (the peer's clock is
        ahead), `offset_error_us` (None before they are known), `mandate`, `heeds` and `classes` (as it said last:
        the mandate it acts by, that of the controller it heeds, 0 for none, the version of its classes), and
        totals: `frames_in`, `bytes_in`, `bytes_out`, `dropped_bytes`, `suspicions`, and `sent` (frames),
        `sent_bytes`, `refused` (frames), each of these a dict of `urgent`, `live`, `reads`."""

    def link_status(self, classes: int) -> None:
        """What this node says of itself: the version of its classes."""

    def link_ask(self, ticket: int, node: str, body: bytes) -> None:
        """Answer: what the peer's control plane answers. Refused `not_linked`, `link_full`, or `link_lost`:
        it may have been done."""

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        """Answers an `asked` event."""

    def clock_us(self) -> int:
        """The node's clock: monotonic, since it started. Times of `lead_…` are of it."""

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        """Sets all `(hub, term, gives_up)` whose records name this process as the leader: it claims leads of those that
        it is not to give up. As all of `lead_…` behind `link_begin`; another incarnation begins without any."""

    def lead_census(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None:
        """Sets who counts where a majority is asked for, and who counted before.

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
        """Answer: something, once nothing is granted by tables of before and `lead_snapshot` shows these.

        Args:
            mandate: Number of the election, from 1; those of an earlier one change nothing.
            until_us: End of the controller's lease at the coordinator; nothing is granted from then on. A time that has
                passed ends the mandate.
            confirmed_us: A time at or after which the coordinator had this mandate. It runs for one lead from the last
                such time, or from the last at which a majority of the census heeded it without a break since then.
            tables: Node, incarnation, and the `(hub, term)` pairs that it may be granted.
            census: Revision that grants name.

        Raises:
            ValueError: the mandate is 0, or as `lead_census`.
        """

    def lead_resign(self, ticket: int, mandate: int) -> None:
        """Ends a mandate. Answer: as of `lead_tables`."""

    def lead_snapshot(self) -> dict[str, Any]:
        """What a controller decides by, at one moment a few ms ago at most.

        Returns:
            A dict of `now_us` (that moment), `mandate` (0: none), `confirmed_us` (when that was confirmed last),
            `alone_us` (when a majority had no controller last; None: this process has one), `census` and
            `census_us` (the revision that grants name, and since when), `until_us` (end of this process's own
            lead), `heeds` (the mandate that it heeds, 0 for none), and `peers`: of each process that was heard,
            this one too, a dict of `node`, `incarnation`, `heard_us`, `heeds_us` and `heeds_until_us` (since and
            until when it is known to heed this mandate, or None), `lead_until_us` (end of the last lead granted to
            it under this mandate, or None), `gave_up` (pairs of hub and term), `suspects` (names).
        """

    def route_classes(self, rows: Sequence[tuple[Mapping[str, Any], int, int, str]]) -> None:
        """Sets all classes in order of precedence: definition, version, hubs in the cluster, `ring` or `least-busy`.

        Raises:
            ValueError: one has no hub, another number of them or another placement than before, an unknown
                placement, or the last one does not match all.
        """

    def route_hubs(self, rows: Sequence[tuple[int, str, int, int, tuple[str, int] | None]]) -> None:
        """Sets all hubs: id, class, index in it, term, node and incarnation of the leader or None. Behind
        `link_begin` nothing is served before all of them are told once.

        Raises:
            ValueError: an id or a term is 0.
        """

    def route_serves(self, hubs: Sequence[int]) -> None:
        """Sets the hubs that this process serves without a lead, where `route_hubs` names it as their leader: all."""

    def route_rooms(self, room_class: str, hubs: Sequence[tuple[bytes, int | None]]) -> None:
        """Says where some rooms of a class are; None: where the ring has them, or it is to be asked again.

        Raises:
            ValueError: the node does not know the class.
        """

    def route_refuse(self, rooms: Sequence[bytes], code: str) -> None:
        """Says that rooms of `room_miss` events get no place: what waits for them is refused with this code.

        Raises:
            ValueError: there is no such code.
        """

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Says that rooms of `room_miss` events that want no place have none: questions are answered so."""

    def route_unused(self, ticket: int, hub: int, term: int, rooms: Sequence[bytes], gives_up: bool) -> None:
        """Answer: those of these rooms that nobody uses, of a hub without a log that this process leads in that term:
        memory has neither subscribers nor records of them. `gives_up`: this node has no place for them from then on."""

    def route_located(self, number: int, members: Sequence[tuple[str, str]] | None, code: str) -> None:
        """Answers a `locate` event: names and Redis addresses, the leader's first; None: refused with this code.

        Raises:
            ValueError: there is no such code.
        """

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Room, class, and the index of the hub that the ring has for it."""

    def route_ready(self) -> list[tuple[str, int]]:
        """Nodes and incarnations of the processes that are ready, as they said; this one too."""

    def reload(self, limits: Mapping[str, int]) -> None:
        """Sets the limits; those of mailboxes and of the route cache hold from the start."""

    def stop(self, grace_ms: int) -> None:
        """Stops accepting, lets output drain for `grace_ms`, closes. A `stopped` event a shard."""

    def join(self) -> None:
        """Waits for shards that stop, then ends the log cleanly. Releases the interpreter."""

@final
class Coordinator:
    """A node of the embedded coordinator, on a thread of its own.

    Requests answer as events of `drain`: `("answer", ticket, value)` or `("refused", ticket, code, message)`, where the
    code `unknown_outcome` alone means that something may have been changed. One that is not taken raises RuntimeError
    of code and message.
    """

    def __new__(cls, setup: Mapping[str, Any]) -> Self:
        """Starts it; returns when it is in its cluster, or has founded one. Releases the interpreter.

        Args:
            setup: `directory`, `node` (name), `listen` (HOST:PORT), `advertise` (host or None: as bound), `join`
                (HOST:PORT of members; none: it founds, unless its directory is of one), `join_ms` (for all of them),
                `secret` (bytes), `voters_max` (3 or 5), `request_ms`, `away_ms` (a member that was silent for so long
                loses its vote to a learner, and its name to who asks for it), `detours` (address to address).

        Raises:
            OSError: it cannot listen.
            RuntimeError: code and message.
        """

    def wake_fd(self) -> int: ...
    def drain(self, answers_max: int) -> list[tuple[Any, ...]]: ...
    def failed(self) -> str | None:
        """Why it can go on no more (its disk, a panic), if it is so: what waits then is never answered. There is a
        wake-up when it becomes so."""

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
        """Answer: `("committed", revisions)`, `("mismatch", place in expect, revision)` or `("no_lease", lease)`.

        Args:
            writes: Key, value (None deletes), lease.
        """

    def grant(self, ticket: int, ttl_ms: int) -> None:
        """Answer: the lease."""

    def renew(self, ticket: int, lease: int) -> None: ...
    def release(self, ticket: int, lease: int) -> None: ...
    def watch(self, ticket: int, directory: str, cursor: tuple[int, str | None] | None, wait_ms: int) -> None:
        """Answer: whether a whole begins, whether it ends, rows (value None: gone), the next cursor.

        Args:
            cursor: Of the last answer; None: the whole.
            wait_ms: No rows come after so long.
        """

    def leave(self, ticket: int, node: int) -> None:
        """Takes a member out of the cluster for good, this one or another."""

    def status(self, ticket: int) -> None:
        """Answer: `node`, `cluster` (hexadecimal), `term`, `leader` or None, `members` (number to name, address and
        whether it votes), `applied`, `log_bytes`, `store_bytes`, `store_bytes_max`, `failed` or None."""

    def stop(self) -> None:
        """Waits for its thread. What was asked and not answered is of unknown outcome. Releases the interpreter."""
