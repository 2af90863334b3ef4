"""Bodies of `/v1/cluster` and related routes: links, nodes, hubs and moves."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field


class Link(Struct, kw_only=True):
    """A link of this node to a peer. There is one per shard that both nodes have."""

    state: Annotated[
        Literal["waiting", "dialing", "up", "suspected", "refused"], Meta(description="As this node has it.")
    ]
    reason: Annotated[str | None, Meta(description="Why it ended the last time.")]
    heard_ms: Annotated[float | None, Meta(description="How long ago; null: never.")]
    round_trip_us: int | None


class PeerLinks(Struct, kw_only=True):
    """The links to one peer."""

    node: str
    incarnation: int
    links: list[Link]
    clock_offset_us: Annotated[
        int | None,
        Meta(
            description="How far its clock is ahead of this node's, by the link that knows best; null: unknown."
        ),
    ]
    clock_error_us: Annotated[int | None, Meta(description="At most so much that is wrong by.")]


class ReachedAddress(Struct, kw_only=True):
    """An address that a node advertises, and whether another node can connect to it."""

    node: str
    listener: str
    address: str
    problem: Annotated[str | None, Meta(description="Why no connection came about; null: one did.")]


class ReachedAddresses(Struct, kw_only=True):
    """Result of connecting to the advertised addresses of the other nodes."""

    node: Annotated[str, Meta(description="Who tried.")]
    addresses: list[ReachedAddress]


class Voters(Struct, kw_only=True):
    """The voters: nodes whose majority is needed to replace a leader."""

    nodes: list[str]
    before: Annotated[
        list[str], Meta(description="Those of the one before, while it changes: both count then.")
    ]


class CoordinatorInfo(Struct, kw_only=True):
    """The coordinator's state as this node sees it."""

    kind: Annotated[str, Meta(description="`embedded`, `etcd`, `zookeeper`, or a plug-in's scheme.")]
    failed: Annotated[str | None, Meta(description="Why this node's part of it can do nothing any more.")]
    heard_ago_s: Annotated[
        float | None,
        Meta(description="How long ago it answered for sure; null: this node is not registered now."),
    ]


class Member(Struct, kw_only=True):
    """A node as another one sees it."""

    name: str
    state: Literal["up", "draining", "not seen", "dead", "silent", "suspected", "joining"]
    incarnation: int
    since_ms: Annotated[int, Meta(description="When it registered, since 1970, by its own clock.")]
    roles: list[str]
    zone: str
    capacity: float
    version: str
    addresses: Annotated[dict[str, str], Meta(description="Protocol to HOST:PORT.")]
    hubs_led: int


class ClusterHub(Struct, kw_only=True):
    """Leader and members of a hub."""

    hub: int
    room_class: str = field(name="class")
    index: int
    term: int
    leader: str
    members: Annotated[list[str], Meta(description="Leader first.")]
    proposed: Annotated[str | None, Meta(description="Who is to lead it, while it is moved.")]


class Move(Struct, kw_only=True):
    """A leader change that this node decided as the controller."""

    hub: int
    why: str
    leader: str
    ago_s: float


class MoveOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Request to move a room."""

    to: Annotated[
        str | None,
        Meta(
            description="A node, or a hub by name (CLASS-INDEX) or id; null: where its class's ring has it."
        ),
    ]


class MoveResult(Struct, kw_only=True):
    """Where a room is after a move."""

    room: str
    room_class: str = field(name="class")
    hub: Annotated[int | None, Meta(description="Null: the ring says.")]


class MoveNote(Struct, kw_only=True):
    """A move of a room, or of a hub with all its rooms, that the controller made or refused."""

    room: Annotated[str | None, Meta(description="Null: a hub got another leader.")]
    room_class: str = field(name="class")
    before: Annotated[int | None, Meta(description="The hub that had the room by a record.")]
    hub: Annotated[int | None, Meta(description="That has it now, or whose leader changed.")]
    leader: str | None
    why: str
    words: Annotated[str, Meta(description="The same for people.")]
    result: Literal["moved", "refused"]
    reason: Annotated[str | None, Meta(description="Why it was refused.")]
    ago_s: float


class MoveList(Struct, kw_only=True):
    """The latest moves, at most 256, the latest last."""

    moves: list[MoveNote]


class ClusterInfo(Struct, kw_only=True):
    """The cluster as the answering node sees it."""

    cluster: Annotated[str, Meta(description="Its id.")]
    node: Annotated[str, Meta(description="Who answers.")]
    incarnation: int
    controller: str | None
    controller_term: Annotated[int | None, Meta(description="Number of the controller's election.")]
    voters: Voters | None
    coordinator: CoordinatorInfo
    nodes: list[Member]
    hubs: list[ClusterHub]
    classes: Annotated[dict[str, int], Meta(description="Name to version.")]
    rooms_with_record: int
    rooms_waiting: Annotated[int, Meta(description="Rooms that wait at this node for a place.")]
    moves: list[Move]
    wrong: Annotated[
        list[str], Meta(description="What an operator must see to, in words; empty if all is well.")
    ]
