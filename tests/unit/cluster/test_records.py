"""Records in the coordinator: read, written, refused; and commits of them."""

import json

import pytest

from hubsub.control.cluster.commits import (
    COMMIT_BYTES_MAX,
    CONTROLLER,
    OPERATIONS_MAX,
    Change,
    Put,
    packed,
)
from hubsub.control.cluster.records import (
    FORMAT,
    ClassRecord,
    ClusterRecord,
    ControllerRecord,
    HubRecord,
    IncarnationRecord,
    NodeRecord,
    Proposed,
    Record,
    VotersRecord,
    format_of,
    parse,
)
from hubsub.errors import RecordDamagedError, RecordFormatError

RECORDS: list[Record] = [
    ClusterRecord(id="c0ffee"),
    IncarnationRecord(last=1_750_000_000),
    NodeRecord(incarnation=7, addresses={"redis": "10.0.0.1:3221"}, roles=("hub",), zone="a", capacity=2.5),
    ControllerRecord(node="n1", incarnation=7, controller_term=3),
    ClassRecord(version=2, hubs=64, members=3, placement="ring", definition={"match": ["chat/#"]}),
    HubRecord(
        room_class="chat",
        index=5,
        term=9,
        leader="n1",
        incarnation=7,
        members=("n1", "n2"),
        proposed=Proposed(leader="n2", members=("n2", "n3")),
    ),
    VotersRecord(nodes=("n1", "n2"), before=("n1",)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_is_written_is_read_again(record: Record) -> None:
    assert parse(type(record), "key", format_of(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_fields_of_another_version_are_kept(record: Record) -> None:
    value = json.loads(format_of(record)) | {"weight": {"of": [1, None]}}
    again = json.loads(format_of(parse(type(record), "key", json.dumps(value).encode())))
    assert again == value


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_with_both_versions_named(other: int) -> None:
    value = json.loads(format_of(ClusterRecord(id="c0ffee"))) | {"format": other, "id": ["other"]}
    with pytest.raises(RecordFormatError) as caught:
        parse(ClusterRecord, "meta/cluster", json.dumps(value).encode())
    assert f"meta/cluster has format {other}, this version reads {FORMAT}" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format":2}',
        b'{"format":"1","incarnation":7}',
        b'{"format":2,"incarnation":"7"}',
        b'{"format":2,"incarnation":7,"capacity":0}',
    ],
)
def test_what_is_no_record_is_refused_with_its_key(value: bytes) -> None:
    with pytest.raises(RecordDamagedError) as caught:
        parse(NodeRecord, "nodes/n1", value)
    assert "nodes/n1" in str(caught.value)


def test_commits_hold_every_change_whole_and_expect_the_controller() -> None:
    changes = [
        Change({f"a/{i}": i, f"b/{i}": 0}, (Put(f"a/{i}", b"x"), Put(f"b/{i}", b""))) for i in range(90)
    ]
    commits = list(packed(changes, 17))
    assert [write for commit in commits for write in commit.writes] == [w for c in changes for w in c.writes]
    assert len(commits) == 4
    for commit in commits:
        assert commit.operations <= OPERATIONS_MAX
        assert commit.expect[CONTROLLER] == 17
        keys = {write.key for write in commit.writes}
        assert keys == set(commit.expect) - {CONTROLLER}


def test_a_commit_holds_no_more_bytes_than_a_backend_takes() -> None:
    changes = [Change({f"a/{i}": i}, (Put(f"a/{i}", bytes(60_000)),)) for i in range(20)]
    for commit in packed(changes, 17):
        assert sum(len(w.value) for w in commit.writes) <= COMMIT_BYTES_MAX


def test_nothing_to_change_is_no_commit() -> None:
    assert list(packed([], 17)) == []
