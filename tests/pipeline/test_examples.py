"""The examples work as documented, on a node with the generator's events."""

from __future__ import annotations

import json
import os
import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

from hubsub import BlockingClient
from hubsub.cli import demo
from hubsub.testing import Node

EVENTS = list(demo.events(2_000, 20, 50))
REPORTS = list(demo.reports(600, 6))
ADDRESS = "127.0.0.1:3220"


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with a chat log and device reports."""
    log = {"durability": "durable", "history": {"bytes": "1GiB"}}
    classes = [
        {"name": "chat", "match": ["chat:*"], **log},
        {"name": "devices", "match": ["devices/#"], "room": "devices/+", **log},
    ]
    node = make_node(classes=classes, config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        client.publish_many((event["room"].encode(), json.dumps(event).encode()) for event in EVENTS)
        client.publish_many(
            (f"devices/{report['device']}/state".encode(), json.dumps(report).encode()) for report in REPORTS
        )
    return node


@pytest.fixture
def examples(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples' directory, with its scripts importable from each other."""
    directory = repository / "examples"
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("MPLBACKEND", "agg")
    matplotlib.use("agg")
    yield directory
    plt.close("all")


def test_the_pictures_show_what_was_published(spark: Any, node: Node, examples: Path, tmp_path: Path) -> None:
    figures = runpy.run_path(str(examples / "rooms_in_plots.py"))["figures"]
    tables: dict[str, Any] = {}

    def kept(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda frame: tables.setdefault(name, make(frame))

    of = [name for name in figures.__globals__ if name.endswith("_of")]
    figures.__globals__.update({name: kept(name, figures.__globals__[name]) for name in of})
    drawn = figures(spark, node.http_url)
    assert list(drawn) == ["events-a-minute", "busiest-rooms", "session-lengths", "devices"]
    for name, figure in drawn.items():
        figure.savefig(tmp_path / f"{name}.png")

    rooms = Counter(event["room"] for event in EVENTS)
    assert dict(tables["minutes_of"].groupby("room").events.sum()) == rooms
    people = {room: len({e["user"] for e in EVENTS if e["room"] == room}) for room in rooms}
    assert list(tables["rooms_of"].events) == sorted(rooms.values(), reverse=True)[:15]
    assert all(row.people == people[row.room] for row in tables["rooms_of"].itertuples())
    found = tables["sessions_of"]
    # A user who joins twice and leaves twice has left at the first leave.
    leaves = sum(1 for event in EVENTS if event["kind"] == "leave")
    assert 0.9 * leaves < (found.closed_by == "leave").sum() <= leaves
    assert found.minutes.between(0, 120).all() and len(tables["reports_of"]) == len(REPORTS)


def test_without_records_there_are_no_pictures(spark: Any, node: Node, examples: Path) -> None:
    plots = runpy.run_path(str(examples / "rooms_in_plots.py"))
    assert plots["figures"](spark, node.http_url, chat="chat:no", devices="devices/no/#") == {}


def test_a_device_is_in_one_state_after_the_other(examples: Path) -> None:
    import pandas as pd

    plots = runpy.run_path(str(examples / "rooms_in_plots.py"))
    rows = [("idle", 1), ("idle", 2), ("fault", 3), ("idle", 4), ("idle", 6)]
    assert plots["spans"](pd.DataFrame(rows, columns=["state", "at"])) == [
        ("idle", 1, 3),
        ("fault", 3, 4),
        ("idle", 4, 6),
    ]


def test_the_notebook_runs_from_top_to_bottom(spark: Any, node: Node, examples: Path) -> None:
    notebook = json.loads((examples / "rooms.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) >= (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "clear them"
    values: dict[str, Any] = {}
    for cell in cells:
        text = "".join(cell["source"]).replace(ADDRESS, node.http_url.removeprefix("http://"))
        code = compile(text, f"rooms.ipynb {cell['id']}", "exec")
        if "plt.show()" in text:  # Another test draws them; this one only checks that all names are defined.
            assert set(code.co_names) <= {*values, "show"}
        else:
            exec(code, values)
    assert len(values["reports"]) == len(REPORTS) and len(values["first"].collect()) == 5


@pytest.mark.parametrize("name", ["rooms", "devices"])
def test_the_sql_files_give_a_row_for_each_room_or_device(
    name: str, spark: Any, node: Node, examples: Path
) -> None:
    apart = spark.newSession()
    text = (examples / f"{name}.sql").read_text().replace(ADDRESS, node.http_url)
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    frames = [apart.sql(statement) for statement in code.split(";") if statement.strip()]
    rows = frames[-1].collect()
    if name == "rooms":
        rooms = Counter(event["room"] for event in EVENTS)
        assert [row.events for row in rows] == sorted(rooms.values(), reverse=True)[:10]
    else:
        last = {report["device"]: report for report in REPORTS}
        assert {(row.device, row.state, row.temperature) for row in rows} == {
            (device, report["state"], report["temperature"]) for device, report in last.items()
        }


def test_the_tables_of_the_declarative_pipeline_hold_all_events(
    spark: Any, node: Node, examples: Path, tmp_path: Path
) -> None:
    """Runs its definitions without its own engine, which needs a Spark Connect server."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    flows: dict[str, Any] = {}

    class Registry:
        def register_output(self, output: Any) -> None: ...

        def register_flow(self, flow: Any) -> None:
            flows[flow.name] = flow

    project = examples / "spark-pipelines"
    with graph_element_registration_context(Registry()):  # type: ignore[arg-type]
        runpy.run_path(str(project / "transformations" / "events.py"))
    apart = spark.newSession()
    apart.conf.set("spark.hubsub.servers", node.http_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.sql.SparkSession.active", lambda: apart)
        rows = flows["chat_events"].func()
    assert rows.isStreaming
    write = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    write = write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = write.start()
    query.awaitTermination()
    apart.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("chat_events")
    text = (project / "transformations" / "rooms.sql").read_text()
    views = {}
    for statement in text.split(";"):
        if "CREATE MATERIALIZED VIEW" in statement:
            head, _, select = statement.partition(" AS\n")
            views[head.split("VIEW ")[1].split()[0]] = apart.sql(select)
    spoken = sum(1 for event in EVENTS if event["kind"] in ("message", "action"))
    for name in ("rooms", "hours"):
        assert sum(row.messages for row in views[name].collect()) == spoken
    assert views["rooms"].count() == len({event["room"] for event in EVENTS})


def test_what_the_page_of_the_examples_names_is_there(examples: Path) -> None:
    page = (examples / "README.md").read_text()
    for name in os.listdir(examples):
        if not name.startswith(("__", ".", "README")):
            assert f"({name}" in page, f"{name} is not on the page"
