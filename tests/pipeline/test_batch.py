"""Batch reads through Spark: rows, columns, filters pushed to the server, errors."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pipeline.fake_log import FakeLog

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    """Enables filter pushdown to the server, which is optional."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def test_a_batch_has_all_records_as_they_are(read: Any, fake: FakeLog) -> None:
    frame = read().toPandas().sort_values(["hub", "offset"], ignore_index=True)
    expected = [row for hub in (1, 2) for row in fake.tables[hub].to_pylist()]
    assert len(frame) == 8_000
    for at in (0, 4_999, 5_000, 7_999):
        row = frame.iloc[at].to_dict()
        row["timestamp"] = row["timestamp"].tz_localize("UTC").to_pydatetime()
        row["payload"], row["headers"] = bytes(row["payload"]), dict(row["headers"])
        assert row == expected[at] | {"headers": dict(expected[at]["headers"])}
    assert frame.seq.tolist() == [row["seq"] for row in expected]


@pytest.mark.usefixtures("pushing")
def test_filters_reach_the_server_and_spark_gets_what_it_would_have_kept(read: Any, fake: FakeLog) -> None:
    frame = read().where(
        "room = 'lobby' and offset between 10 and 20 and hub = 1 and timestamp < '2023-11-15'"
    )
    assert sorted(row.offset for row in frame.select("offset").collect()) == [10, 12, 14, 16, 18, 20]
    (params,) = fake.streams()
    assert (params["room"], params["from"], params["until"]) == (["lobby"], ["10"], ["21"])
    assert params["until_us"] == ["1700006400000000"]


def test_a_frame_gives_each_query_what_that_asks_for(read: Any) -> None:
    """Spark stores pushed filters on a frame; these must not affect its later queries or its other uses in
    one query."""
    frame = read()
    assert frame.count() == 8_000
    assert frame.where("room = 'lobby'").count() == 2_500
    assert frame.count() == 8_000
    lobby, other = frame.where("room = 'lobby'"), frame.where("room = 'chat:a'")
    assert (lobby.unionByName(other).count(), frame.where("hub = 2").count()) == (5_000, 3_000)


@pytest.mark.usefixtures("pushing")
def test_a_filter_on_devices_is_checked_by_the_server(read: Any, fake: FakeLog) -> None:
    table = fake.tables[1]
    at, names = (
        table.column_names.index("device"),
        [f"d{n % 5}" if n % 2 else None for n in range(len(table))],
    )
    fake.tables[1] = table.set_column(at, "device", [names])
    found = {(row.hub, row.device) for row in read().where("device in ('d1', 'd2')").collect()}
    assert found == {(1, "d1"), (1, "d2")}
    assert {tuple(params["device"]) for params in fake.streams()} == {("d1", "d2")}


@pytest.mark.usefixtures("pushing")
def test_a_filter_that_is_not_pushed_is_applied_all_the_same(read: Any, fake: FakeLog) -> None:
    frame = read().where("offset in (3, 7) and seq % 2 = 0 and offset != 5 and room like 'chat:%'")
    assert [(row.hub, row.offset) for row in frame.collect()] == [
        (1, 3),
        (1, 7),
        (2, 3),
        (2, 7),
    ]
    assert {params["room_prefix"][0] for params in fake.streams()} == {"chat:"}
    assert {params["until"][0] for params in fake.streams()} == {"8"}


def test_filters_are_sparks_own_work_unless_pushdown_is_on(read: Any, fake: FakeLog) -> None:
    assert read().where("room = 'lobby' and offset <= 10").count() == 5
    assert all("room" not in params and params["until"] != ["11"] for params in fake.streams())


def test_columns_are_pruned_at_the_server(read: Any, fake: FakeLog) -> None:
    assert read(columns="payload,room", subscribe="lobby").columns == ["payload", "room"]
    assert read(columns="payload,room", subscribe="lobby").where("room = 'lobby'").count() == 2_500
    assert fake.streams()[0]["columns"] == ["offset,room,payload"]


def test_a_schema_of_the_users_own_prunes_too(spark: Any, fake: FakeLog) -> None:
    reader = spark.read.format("hubsub").option("servers", fake.address).schema("seq bigint, hub int")
    assert reader.load().selectExpr("min(hub)", "max(seq)").collect()[0] == (1, 2_501)
    assert fake.streams()[0]["columns"] == ["hub,offset,seq"]
    wrong = spark.read.format("hubsub").option("servers", fake.address).schema("seq string")
    with pytest.raises(PySparkException, match="it is bigint"):
        wrong.load().collect()


def test_offsets_and_times_bound_a_batch(read: Any) -> None:
    bounds = {"startingOffsets": '{"1": 4990, "chat-2": -1}', "endingOffsets": '{"1": 4995}'}
    assert sorted(row.offset for row in read(**bounds).collect()) == list(range(4_990, 4_995))
    times = {"startingTimestamp": "1700000000100", "endingTimestamp": "2023-11-14T22:13:20.102Z"}
    found = sorted((row.hub, row.offset) for row in read(**times).collect())
    assert found == [(1, 100), (1, 101), (2, 100), (2, 101)]


def test_partitions_are_few_unless_more_are_asked_for(read: Any, fake: FakeLog) -> None:
    assert read().rdd.getNumPartitions() == 1
    frame = read(minPartitions="5")
    assert (
        frame.rdd.getNumPartitions() == 5
        and frame.selectExpr("count(distinct hub, offset)").first()[0] == 8_000
    )


def test_sql_reads_hubs_without_registration(spark: Any, fake: FakeLog) -> None:
    spark.sql(f"create or replace temporary view v using hubsub options (servers '{fake.address}')")
    rows = spark.sql(
        "select room, count(*) from v where room >= 'chat:b' group by room order by room"
    ).collect()
    assert [tuple(row) for row in rows] == [("chat:b", 1_500), ("chat:c", 1_500), ("lobby", 2_500)]


def test_nothing_there_is_no_row(read: Any, fake: FakeLog) -> None:
    assert read(subscribe="nobody").count() == 0
    assert fake.streams() == []


@pytest.mark.usefixtures("pushing")
def test_filters_that_contradict_each_other_ask_for_nothing(read: Any, fake: FakeLog) -> None:
    assert read().where("room = 'a' and room = 'b'").count() == 0
    assert fake.streams() == []


def test_a_broken_connection_gives_exact_rows(read: Any, fake: FakeLog) -> None:
    fake.faults.break_after = [2, 1]
    frame = read().selectExpr("count(*) n", "count(distinct hub, offset) d", "sum(offset) s")
    assert tuple(frame.first()) == (8_000, 8_000, 5_000 * 5_001 // 2 + 3_000 * 3_001 // 2)
    assert len(fake.streams()) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"maxRowPerBatch": "5"},
            "OptionError: unknown option: maxrowperbatch\nhint: did you mean maxRowsPerBatch?",
        ),
        ({"startingOffsets": '{"9": 5}'}, "OptionError: offsets name a hub that the read does not have: 9"),
    ],
)
def test_options_that_are_wrong_are_said(read: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as raised:
        read(**options).collect()
    assert said in str(raised.value)


def test_offsets_lost_fail_the_read_and_name_the_range(read: Any, fake: FakeLog) -> None:
    fake.faults.lost = {1: (2_001, 3_001)}
    with pytest.raises(
        PySparkException, match="OffsetsLostError: records of hub chat-1 are gone: offsets 2001 to 3000"
    ):
        read().count()
    fake.earliest[2] = 101
    with pytest.raises(PySparkException, match="records of hub chat-2 are gone: offsets 7 to 100"):
        read(startingOffsets='{"2": 7}').count()
    assert read(startingOffsets='{"2": 7}', failOnDataLoss="false").count() == 4_000 + 2_900


def test_rooms_in_memory_only_fail_with_what_to_do(read: Any, fake: FakeLog) -> None:
    fake.ephemeral = ["default"]
    with pytest.raises(PySparkException) as raised:
        read(subscribe="nobody").count()
    assert 'keep no log, so Spark cannot see them: default\nhint: set durability = "durable"' in str(
        raised.value
    )
    assert read(subscribe="lobby").count() == 2_500
