"""The whole of what crosses between Python and the Rust core.

Nothing here is called per message. Requests are put into a shard's mailbox and
return at once; answers, log lines and state changes come back as events that
`drain` hands over in batches after `wake_fd` became readable.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, final

__all__ = ["BUILD_PROFILE", "Core", "__version__", "error_codes", "limits_default", "room_of"]

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

@final
class Core:
    """A node's data plane: its shards and their threads."""

    def __new__(cls, config: Mapping[str, Any]) -> Self:
        """Checks the configuration; starts nothing.

        Args:
            config: `node` (str), `incarnation` (int, 32 bits), `shards` (int, 1 to 64),
                `redis` (`HOST:PORT` or None), `advertise` (host that clients are told, None for the
                bound address), `hash_tags` (bool), `limits` (name to int, all
                of them), `classes` (list of dicts: `name`, `match` (list of str, empty
                matches all), `room` (str or None), `history` (None or dict of `messages`,
                `bytes`, `age_ms`), `on_slow`, `on_gap`, `payload_bytes_max`, `idle_ms`,
                `commit_delay_ms`).

        Raises:
            ValueError: a key is missing, unknown or out of range; the message names it.
        """

    def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards.

        Returns:
            Listener (`redis`) to its bound `HOST:PORT`, or None if off.

        Raises:
            OSError: an address cannot be bound; `filename` is the address.
        """

    def wake_fd(self) -> int:
        """Descriptor that is readable while events wait; the core owns it."""

    def drain(self, events_max: int) -> list[tuple[Any, ...]]:
        """Takes up to `events_max` events and clears the descriptor when none is left.

        Returns:
            In order of arrival, each one of
            `("answer", ticket, value)`, `("refused", ticket, code, message)`,
            `("log", level, message, fields)` with level `debug|info|warning|error`,
            `("stopped", shard, reason)` with reason None after a clean stop.
        """

    def publish(
        self,
        ticket: int,
        items: Sequence[tuple[bytes, bytes, Mapping[str, str], str, tuple[int, int] | None]],
    ) -> None:
        """Publishes `(topic, payload, headers, publisher, (producer, sequence) | None)` in order.

        Answer: a list as long as `items` of `(receivers, epoch, seq, is_duplicate)` or
        `(code, message)`; epoch and seq are 0 where no room took the record.
        """

    def room(self, ticket: int, room: bytes) -> None:
        """Answer: None or a dict of `name` (bytes), `class`, `epoch`, `seq`, `shard`, `hub`,
        `in_memory`, `subscribers`, `topics`, `history` (records), `history_bytes`, `first_seq`,
        `idle_ms`; the last four are None for a room that only the log knows."""

    def rooms(self, ticket: int, match: bytes | None, after: bytes | None, limit: int) -> None:
        """Answer: up to `limit` dicts as of `room`, in order of name, behind `after`."""

    def room_create(self, ticket: int, room: bytes) -> None:
        """Answer: the room's dict, made if it was not there and its class keeps a history."""

    def room_delete(self, ticket: int, room: bytes) -> None:
        """Answer: True if it was there. Refused `room_in_use` while it has subscribers."""

    def history(
        self, ticket: int, room: bytes, count: int, after: tuple[int, int] | None, topic: bytes | None
    ) -> None:
        """Answer: `(recovered, rows)`; rows oldest first, each `(epoch, seq, timestamp_us, topic,
        publisher, payload, headers)`. Without `after` the last `count`; with it, the first
        `count` behind that position, `recovered` False if that position is unknown."""

    def clients(self, ticket: int, sort: str, limit: int, client: int | None) -> None:
        """Answer: dicts of `id`, `shard`, `addr`, `laddr`, `name`, `lib_name`, `lib_ver`, `protocol`,
        `age_s`, `idle_s`, `subscriptions`, `patterns`, `pending_bytes`, `dropped`, `lagging`,
        `messages_in`, `messages_out`, `bytes_in`, `bytes_out`, and each of those four with
        `_1s` and `_60s` (a second), largest `sort` first."""

    def client_kill(self, ticket: int, client: int, reason: str) -> None:
        """Answer: True if there was one."""

    def busiest_rooms(self, ticket: int, limit: int) -> None:
        """Answer: `(room, messages_per_second)` of the busiest, from the shards' sketches."""

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges now: `{"shards": [{name: int}, …], "node": {name: int}}`."""

    def reload(self, limits: Mapping[str, int]) -> None:
        """Sets the limits; those of mailboxes and of the route cache hold from the start."""

    def stop(self, grace_ms: int) -> None:
        """Stops accepting, lets output drain for `grace_ms`, closes. A `stopped` event a shard."""

    def join(self) -> None:
        """Waits for shards that stop, then ends the log cleanly. Releases the interpreter."""
