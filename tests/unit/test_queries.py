"""Progress of queries: the table, and `/v1/queries` over a fake node."""

from typing import Any

import pytest

from hubsub.control.query_progress import NAME_CHARACTERS_MAX, SILENCE_S, Queries
from hubsub.errors import BadRequestError, TooBusyError
from unit.played_node import Api, fits, hub_row, played_log

HUBS = (1, 2)


class Table:
    """A table for two queries, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queries = Queries(lambda: {"http_queries_max": 2}, lambda: self.now)

    @property
    def names(self) -> list[str]:
        return list(self.queries.all())


def test_a_query_is_where_it_was_last() -> None:
    table = Table()
    table.queries.report("q", {1: 5}, HUBS)
    table.queries.report("q", {1: 9, 2: 1, 7: 3}, HUBS, 12.5, 4)
    told = table.queries.all()["q"]
    assert (told.offsets, told.rows_per_second, told.batch) == ({1: 9, 2: 1}, 12.5, 4), "hub 7 is none"
    assert [told.lag(1, 10), told.lag(1, 3), told.lag(7, 10)] == [1, 0, None]


def test_a_full_table_refuses_new_queries_and_keeps_those_that_speak() -> None:
    table = Table()
    table.queries.report("a", {}, HUBS)
    table.queries.report("b", {}, HUBS)
    with pytest.raises(TooBusyError, match="too") as raised:
        table.queries.report("c", {}, HUBS)
    assert "http_queries_max" in str(raised.value.hint) and table.queries.refused == 1
    table.queries.report("a", {1: 2}, HUBS)
    assert table.names == ["a", "b"]


def test_silence_forgets_a_query_and_a_report_renews_it() -> None:
    table = Table()
    table.queries.report("a", {}, HUBS)
    table.queries.report("b", {}, HUBS)
    table.now = SILENCE_S - 1
    table.queries.report("a", {}, HUBS)
    table.now = SILENCE_S
    assert table.names == ["a"] and not table.queries.drop("b")
    table.queries.report("c", {}, HUBS)
    assert table.names == ["a", "c"]
    assert table.queries.drop("a") and table.names == ["c"]


def test_a_name_has_an_end() -> None:
    table = Table()
    with pytest.raises(BadRequestError, match="at most 255"):
        table.queries.report("q" * (NAME_CHARACTERS_MAX + 1), {}, HUBS)


@pytest.fixture
def api() -> Api:
    """A node with two hubs, each committed up to its third record."""
    api = Api(limits={"http_queries_max": 1})
    api.node.played_log = played_log(hub_row(1), hub_row(2)) | {"identity": "ab"}
    return api


async def test_what_a_query_reports_is_listed_with_its_lag(api: Api) -> None:
    body = {"offsets": {"1": 2, "2": 4, "9": 1}, "rows_per_second": 7.5, "batch": 3}
    assert (await api.ask("PUT", "/v1/queries/a%2Fb", body)).status == 204
    answer = await api.get("/v1/queries")
    fits(answer, "/v1/queries")
    (query,) = answer.json["queries"]
    assert query.pop("silence_s") < 60
    assert query == {
        "query": "a/b",
        "batch": 3,
        "rows_per_second": 7.5,
        "ended": False,
        "lag": 2,
        "hubs": [
            {"hub": 1, "name": "chat-0", "offset": 2, "lag": 2},
            {"hub": 2, "name": "chat-1", "offset": 4, "lag": 0},
        ],
    }


async def test_a_query_has_ended_when_it_says_so_until_it_reports_again(api: Api) -> None:
    found = []
    for body in ({"offsets": {"1": 2}, "ended": True}, {"offsets": {"1": 2}}):
        await api.ask("PUT", "/v1/queries/q", body)
        (query,) = (await api.get("/v1/queries")).json["queries"]
        found.append((query["ended"], query["lag"]))
    assert found == [(True, 2), (False, 2)]


async def test_lag_is_a_metric_by_query_and_hub(api: Api) -> None:
    await api.ask("PUT", "/v1/queries/q", {"offsets": {"1": 1}})
    await api.ask("PUT", "/v1/queries/other", {"offsets": {}})
    lines = (await api.get("/metrics")).text.splitlines()
    assert 'hubsub_query_lag_records{query="q",hub="chat-0"} 3' in lines
    assert 'hubsub_control_refused_total{limit="http_queries_max"} 1' in lines
    assert not any('hub="chat-1"' in line for line in lines if line.startswith("hubsub_query"))


async def test_a_query_is_forgotten_when_told_so(api: Api) -> None:
    await api.ask("PUT", "/v1/queries/q", {"offsets": {}})
    assert (await api.ask("PUT", "/v1/queries/r", {"offsets": {}})).status == 503
    assert [(await api.ask("DELETE", "/v1/queries/q")).status for _ in range(2)] == [204, 404]
    assert (await api.ask("PUT", "/v1/queries/r", {"offsets": {}})).status == 204


@pytest.mark.parametrize(
    "body",
    [b"", {}, {"offsets": {"x": 1}}, {"offsets": {"1": -1}}, {"offsets": {}, "batsh": 1}, {"offsets": [1]}],
)
async def test_a_report_that_does_not_fit_is_refused(api: Api, body: Any) -> None:
    answer = await api.ask("PUT", "/v1/queries/q", body)
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert (await api.get("/v1/queries")).json == {"queries": [], "blocked": []}
