"""Reports of data-pipeline jobs over REST: `PUT /v1/jobs/{job}`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boundary.test_node import ask
from clients.raw import Connection

from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core")

TABLE: dict[str, Any] = {
    "query": "sessions-1",
    "columns": ["room", "user", "duration_s"],
    "rows": [["chat:a", "ann", 7.5], ["chat:b", None, 3]],
}


def test_what_a_job_tells_is_a_record_that_anybody_may_read(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node(config={"data": str(tmp_path / "data")})
    with Connection(*node.redis) as client:
        client.ask("SUBSCRIBE", "$stats/job/sessions")
        assert ask(node, "PUT", "/v1/jobs/sessions", TABLE)[0] == 204
        said: Any = client.read().plain()
    assert (said[0], json.loads(said[2])) == (b"message", TABLE | {"keys": 0, "more": 0})


@pytest.mark.parametrize(
    ("job", "changed"),
    [
        ("activity", {}),
        ("other", {}),
        ("sessions", {"rows": [["chat:a"]]}),
        ("sessions", {"rows": [["chat:a", "ann", {}]]}),
        ("sessions", {"rows": [["chat:a", "ann", 1]] * 21}),
        ("sessions", {"rows": [["chat:a", "a" * 257, 1]]}),
        ("sessions", {"columns": [], "rows": []}),
        ("sessions", {"keys": 4}),
    ],
    ids=str,
)
def test_a_table_that_does_not_fit_is_refused(
    make_node: Callable[..., Node], tmp_path: Path, job: str, changed: dict[str, Any]
) -> None:
    node = make_node(config={"data": str(tmp_path / "data")})
    status, answer = ask(node, "PUT", f"/v1/jobs/{job}", TABLE | changed)
    assert (status, answer["code"]) == (400, "bad_request")


def test_a_node_without_a_log_says_that_it_keeps_no_tables(make_node: Callable[..., Node]) -> None:
    status, answer = ask(make_node(), "PUT", "/v1/jobs/sessions", TABLE)
    assert answer["code"] == "not_logged" and answer["hint"] and status == 400
