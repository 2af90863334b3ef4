"""Room records in buckets."""

import random
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.control.cluster.bucket_values import FORMAT, SPLIT_BYTES, Piece, Room, hash_of
from hubsub.control.cluster.buckets import NAME_BYTES_MAX, VALUE_BYTES_MAX, Buckets, NotKnown
from hubsub.control.cluster.commits import CONTROLLER, OPERATIONS_MAX, Commit
from hubsub.errors import RecordDamagedError, RecordFormatError, TopicLengthError


class Store:
    """A coordinator of one directory, and the buckets that watch it."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.buckets = Buckets("chat")

    def commit(self, commit: Commit) -> bool:
        expect = {key: revision for key, revision in commit.expect.items() if key != CONTROLLER}
        assert expect.keys() == {write.key for write in commit.writes}
        if any(self.entries.get(key, (b"", 0))[1] != revision for key, revision in expect.items()):
            return False
        for write in commit.writes:
            assert len(write.value) <= VALUE_BYTES_MAX
            self.revision += 1
            self.entries[write.key] = (write.value, self.revision)
        return True

    def change(self, changes: dict[bytes, Room | None]) -> None:
        left = changes
        while left:
            batch = self.buckets.commits(left, 17)
            assert len(batch.left) < len(left)
            left = dict(batch.left)
            for commit in batch.commits:
                assert commit.expect[CONTROLLER] == 17 and commit.operations <= OPERATIONS_MAX
                assert self.commit(commit)
                for write in commit.writes:
                    self.buckets.apply(write.key, *self.entries[write.key])


ROOM = st.builds(
    Room,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.lists(
        st.builds(Piece, st.integers(0, 9), st.integers(1, 2**40), st.integers(1, 2**40)), max_size=4
    ).map(tuple),
)
NAME = st.tuples(st.binary(max_size=4), st.sampled_from([1, 20, 3_000, NAME_BYTES_MAX - 4])).map(
    lambda part: part[0] + b"x" * part[1]
)


@given(st.lists(st.dictionaries(NAME, st.none() | ROOM, max_size=30), max_size=6))
def test_what_was_put_last_is_found_whatever_was_split(batches: list[dict[bytes, Room | None]]) -> None:
    store, model = Store(), dict[bytes, Room]()
    for batch in batches:
        store.change(batch)
        model = {name: room for name, room in (model | batch).items() if room is not None}
        for name in batch:
            assert store.buckets.find(name) == model.get(name)
    assert dict(store.buckets.page(None, 1_000)) == model
    assert len(store.buckets) == len(model)
    assert store.buckets.bytes == sum(len(key) + len(value) for key, (value, _) in store.entries.items())
    for key in store.entries:
        store.buckets.apply(key, None, 0)
    assert (store.buckets.count, store.buckets.bytes) == (0, 0)


def rooms(count: int) -> dict[bytes, Room | None]:
    return {b"chat/room-%08d" % i: Room(i % 64) for i in range(count)}


def test_buckets_split_and_stay_small() -> None:
    store = Store()
    for _ in range(2):
        store.change(rooms(20_000))
    sizes = [len(value) for value, _ in store.entries.values()]
    assert len(sizes) > 30 and max(sizes) <= SPLIT_BYTES
    assert all(store.buckets.find(name) == room for name, room in rooms(20_000).items())
    assert store.buckets.find(b"chat/another") is None


def test_what_changes_nothing_is_not_written() -> None:
    store = Store()
    store.change(rooms(2_000))
    assert store.buckets.commits(rooms(2_000), 17).commits == ()


def test_a_room_is_written_with_its_bucket_alone() -> None:
    store = Store()
    store.change(rooms(20_000))
    (commit,) = store.buckets.commits({b"another": Room(1)}, 17).commits
    assert len(commit.writes) == 1


def test_a_write_that_another_one_was_before_is_refused() -> None:
    store = Store()
    store.change(rooms(10))
    (first,) = store.buckets.commits({b"a": Room(1)}, 17).commits
    (second,) = store.buckets.commits({b"b": Room(2)}, 17).commits
    assert store.commit(first) and not store.commit(second)


def test_while_half_of_a_split_is_missing_no_room_is_taken_for_one_that_is_not_there() -> None:
    store = Store()
    store.change(rooms(60))
    before = dict(store.entries)
    store.change(rooms(150))
    assert len(store.entries) > len(before) == 1
    for key_given in store.entries:
        torn = Buckets("chat")
        for key, (value, revision) in (before | {key_given: store.entries[key_given]}).items():
            torn.apply(key, value, revision)
        names = [name for name, _ in torn.page(None, 1_000)]
        assert len(names) == len(set(names)) == len(torn)
        for name, room in rooms(60).items():
            try:
                assert torn.find(name) == room
            except NotKnown:
                assert key_given == "rooms/chat/00000000"
                with pytest.raises(NotKnown):
                    torn.commits({name: Room(1)}, 17)


@given(st.integers(1, 70))
def test_pages_give_every_room_once(limit: int) -> None:
    store = Store()
    store.change(rooms(300))
    seen: list[bytes] = []
    while page := store.buckets.page(seen[-1] if seen else None, limit):
        assert len(page) <= limit
        seen += [name for name, _ in page]
    assert len(seen) == 300 and set(seen) == rooms(300).keys()


@pytest.mark.parametrize("seed", range(60))
def test_who_hears_of_changes_alone_knows_where_rooms_are_whatever_values_its_watch_left_out(
    seed: int,
) -> None:
    """Buckets that changed are given at their latest value, some of them, in any order; the others later."""
    chance = random.Random(seed)
    store, reader = Store(), Buckets("chat")
    names = [b"chat/a-long-name-so-that-buckets-are-split-%06d" % number for number in range(400)]
    given: dict[str, int] = {}
    told: dict[bytes, int] = {}
    """Where the data plane has rooms that are used; it asks for others."""
    untold: set[bytes] = set()

    def give(keys: list[str]) -> None:
        for key in keys:
            value, revision = store.entries[key]
            if given.get(key) != revision:
                given[key] = revision
                untold.update(reader.apply(key, value, revision))
        for name in list(untold):
            with suppress(NotKnown):
                tell(name)

    def tell(name: bytes) -> None:
        hub = reader.hub_of(name)
        untold.discard(name)
        told.pop(name, None)
        if hub is not None:
            told[name] = hub

    for _ in range(12):
        wanted: list[Room | None] = [None, Room(1), Room(2), Room(2, True)]
        store.change({name: chance.choice(wanted) for name in chance.sample(names, 80)})
        give(chance.sample(sorted(store.entries), chance.randint(0, len(store.entries))))
        for name in chance.sample(names, 40):
            if name not in told:
                with suppress(NotKnown):
                    tell(name)
    give(chance.sample(sorted(store.entries), len(store.entries)))
    assert len(store.entries) > 4 and told and not untold
    there = {name: store.buckets.find(name) for name in told}
    assert told == {name: None if room is None else room.hub for name, room in there.items()}


WHOLE, UPPER_HALF = "rooms/chat/00000000", "rooms/chat/80000000"


def value_of(rooms: dict[bytes, int], depth: int = 0) -> bytes:
    return msgspec.msgpack.encode([FORMAT, depth, rooms])


@pytest.mark.parametrize(
    ("before", "after", "hub", "is_changed"),
    [
        ({b"a": 1}, {b"a": 1}, 1, False),
        ({}, {b"a": 1}, 1, False),
        ({}, {b"a": 2}, 2, True),
        ({}, {}, None, True),
        ({b"a": 2}, {}, None, True),
        ({b"a": 2}, {b"a": 2}, 2, True),
    ],
)
def test_an_answer_of_the_controller_holds_until_its_revision_comes(
    before: dict[bytes, int], after: dict[bytes, int], hub: int | None, is_changed: bool
) -> None:
    reader = Buckets("chat")
    reader.apply(WHOLE, value_of(before), 10)
    reader.add_answer(b"a", 1, 14)
    for revision, rooms in ((11, {b"c": 3}), (12, before | {b"c": 3}), (13, {b"a": 4})):
        reader.apply(WHOLE, value_of(rooms), revision)
        assert reader.hub_of(b"a") == 1
    reader.apply(WHOLE, value_of(before), 13)
    changed = reader.apply(WHOLE, value_of(after), 900)
    assert reader.hub_of(b"a") == hub
    assert (b"a" in changed) or not is_changed


def test_an_answer_of_a_revision_that_is_known_adds_nothing() -> None:
    reader = Buckets("chat")
    reader.apply(WHOLE, value_of({b"a": 2}), 10)
    reader.add_answer(b"a", 1, 10)
    assert reader.hub_of(b"a") == 2


@pytest.mark.parametrize("first", [WHOLE, UPPER_HALF])
def test_an_answer_for_a_room_that_a_split_takes_elsewhere_ends_with_the_bucket_of_its_hash(
    first: str,
) -> None:
    upper = next(name for name in rooms(99) if hash_of(name) >> 31)
    lower = next(name for name in rooms(99) if not hash_of(name) >> 31)
    reader = Buckets("chat")
    reader.apply(WHOLE, value_of({}), 10)
    for name in (lower, upper):
        reader.add_answer(name, 1, 12)
    for key in (first, WHOLE if first == UPPER_HALF else UPPER_HALF):
        assert reader.hub_of(lower if key == WHOLE else upper) == 1
        changed = reader.apply(key, value_of({}, depth=1), 12)
        assert changed == {lower if key == WHOLE else upper: 1}
    assert reader.hub_of(lower) is None and reader.hub_of(upper) is None


def test_answers_for_rooms_of_a_bucket_that_is_removed_are_dropped() -> None:
    reader = Buckets("chat")
    reader.apply(WHOLE, value_of({}), 10)
    reader.add_answer(b"a", 1, 12)
    assert reader.apply(WHOLE, None, 0) == {b"a": 1}
    assert reader.hub_of(b"a") is None


@pytest.mark.parametrize("limit", ["ANSWERS_MAX", "ANSWERS_BYTES_MAX"])
def test_of_answers_without_a_record_the_latest_are_known(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hubsub.control.cluster.buckets.{limit}", 2)
    buckets = Buckets("chat")
    for name in (b"a", b"b", b"a", b"c"):
        buckets.add_answer(name, 1, 1)
    assert [buckets.hub_of(name) for name in (b"a", b"b", b"c")] == [1, None, 1]


def test_a_name_that_is_too_long_is_refused_with_a_hint() -> None:
    with pytest.raises(TopicLengthError) as caught:
        Buckets("chat").commits({bytes(NAME_BYTES_MAX + 1): Room(1)}, 17)
    assert "4097 bytes, at most 4096" in str(caught.value) and "ring" in str(caught.value)


def test_a_newer_format_is_refused_with_both_versions_named() -> None:
    with pytest.raises(RecordFormatError) as caught:
        Buckets("chat").apply(
            "rooms/chat/00000000", msgspec.msgpack.encode([FORMAT + 1, {"all": "other"}]), 1
        )
    assert f"rooms/chat/00000000 has format {FORMAT + 1}, this version reads {FORMAT}" in str(caught.value)


@pytest.mark.parametrize("value", [b"", b"\xff", b"{}", msgspec.msgpack.encode([FORMAT, 0, [1]])])
def test_what_is_no_bucket_is_refused(value: bytes) -> None:
    with pytest.raises(RecordDamagedError):
        Buckets("chat").apply("rooms/chat/00000000", value, 1)


def test_a_key_that_is_no_bucket_is_refused() -> None:
    with pytest.raises(RecordDamagedError):
        Buckets("chat").apply("rooms/chat/middle", b"", 1)


def test_hashes_are_the_same_in_every_version() -> None:
    assert f"{hash_of(b'lobby'):08x}" == "0db46560"


def test_a_record_costs_what_it_is_long_and_little_more() -> None:
    """Names of 18 bytes, hubs below 64: 21 bytes packed. A million of them are 24 MB."""
    store = Store()
    store.change(rooms(50_000))
    tracemalloc.start()
    held = Buckets("chat")
    for key, (value, revision) in store.entries.items():
        held.apply(key, bytes(bytearray(value)), revision)
    cost, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held) == 50_000
    assert 20 <= cost / 50_000 <= 25
