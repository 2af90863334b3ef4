"""`hubsub pipeline NAME` as a user runs it, on a real node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pandas as pd
import pytest
from command_line import HUBSUB, environment, hubsub

from hubsub import BlockingClient
from hubsub.cli import demo
from hubsub.pipeline.archive import open_table
from hubsub.testing import Node

CLASSES = [
    {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}},
    {
        "name": "devices",
        "match": ["devices/#"],
        "device": "devices/{device}/#",
        "durability": "durable",
        "history": {"bytes": "1GiB"},
    },
]
SPARK = [
    "--master",
    "local[2]",
    "--conf",
    "spark.driver.memory=1g",
    "--conf",
    "spark.sql.shuffle.partitions=1",
]


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})


def publish(node: Node, count: int, first: int = 0) -> list[dict[str, Any]]:
    """A chat log from an event on, published."""
    events = list(demo.events(first + count, 20, 50))[first:]
    with BlockingClient(node.redis_url) as client:
        client.publish_many((event["room"].encode(), json.dumps(event).encode()) for event in events)
    return events


def command(node: Node, directory: Path, job: str, *args: str) -> list[str]:
    places = ["--checkpoint", str(directory / job / "checkpoint"), "--out", str(directory / job / "out")]
    if job == "activity":
        places += ["--plot", str(directory / "plot.png")]
    return ["pipeline", job, "--servers", node.http_url, *SPARK, *places, *args]


@pytest.fixture
def running(node: Node, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a job that runs on; all are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(job: str, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*HUBSUB, *command(node, tmp_path, job, *args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(process: subprocess.Popen[str], word: str) -> str:
    """Its lines on stderr up to the one that has the word."""
    seen = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if word in line:
            return line
    raise AssertionError(f"it ended without {word!r}: {''.join(seen)}")


def test_activity_is_what_pandas_counts_and_goes_on_with_what_is_new(node: Node, tmp_path: Path) -> None:
    events = publish(node, 3_000)
    ran = hubsub(*command(node, tmp_path, "activity", "--once", "--event-time", "$.ts"))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert "3,000 records" in ran.stderr and "Traceback" not in ran.stderr
    busiest = Counter(event["room"] for event in events).most_common(1)[0]
    rows = ran.stdout.splitlines()
    assert rows[1].split()[:2] == ["room", "messages"]
    assert rows[2].split()[:2] == [busiest[0], f"{busiest[1]:,}"]
    assert windows(tmp_path) == counted(events)

    # What comes later counts in the windows of its time.
    events += publish(node, 200, 3_000)
    again = hubsub(*command(node, tmp_path, "activity", "--once", "--event-time", "$.ts"))
    assert again.returncode == 0 and "200 records" in again.stderr, again.stderr
    assert windows(tmp_path) == counted(events)


def counted(events: list[dict[str, Any]]) -> dict[tuple[str, pd.Timestamp], tuple[int, int]]:
    """Messages and bytes by room and minute."""
    table = pd.DataFrame(events)
    table["bytes"] = [len(json.dumps(event)) for event in events]
    table["minute"] = pd.to_datetime(table.ts, utc=True).dt.floor("min")
    found = table.groupby(["room", "minute"]).bytes.agg(["size", "sum"])
    return {key: tuple(row) for key, row in found.iterrows()}


def windows(directory: Path) -> dict[tuple[str, pd.Timestamp], tuple[int, int]]:
    """Messages and bytes by room and window, of the latest version of each window."""
    table = pd.read_parquet(directory / "activity" / "out").sort_values("batch_id")
    table = table.drop_duplicates(["room", "epoch", "window_start"], keep="last")
    return {
        (row.room, row.window_start.tz_convert("UTC")): (row.messages, row.bytes)
        for row in table.itertuples()
    }


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_archive_that_is_killed_and_restarted_has_each_record_once(
    node: Node, tmp_path: Path, running: Callable[..., subprocess.Popen[str]], table_format: str
) -> None:
    publish(node, 2_000)
    job = ("archive", "--format", table_format, "--trigger", "100ms", "--option", "maxRowsPerBatch=300")
    first = running(*job)
    until(first, "archive: ")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    publish(node, 500, 2_000)
    second = hubsub(*command(node, tmp_path, *job, "--once"))
    assert second.returncode == 0, second.stderr
    assert "2,500" in second.stdout
    table = open_table(str(tmp_path / "archive" / "out"), table_format)
    _, files = table.contents()
    parts = [pd.read_parquet(tmp_path / "archive" / "out" / file.path) for file in files]
    rows = pd.concat(parts)
    assert len(rows) == 2_500 and not rows.duplicated(["hub", "offset"]).any()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_job_cleanly_and_the_node_knows_how_far_it_is(
    node: Node, running: Callable[..., subprocess.Popen[str]], number: int
) -> None:
    publish(node, 1_000)
    job = running("archive", "--trigger", "100ms")
    until(job, "1,000 records")
    with urlopen(f"{node.http_url}/v1/queries") as answer:
        (query,) = json.load(answer)["queries"]
    assert query["query"].startswith("archive-") and query["lag"] == 0
    shown = hubsub("hub", "show", query["hubs"][0]["name"], "--url", node.http_url).stdout
    assert f"query {query['query']}" in shown and "0 behind" in shown
    job.send_signal(number)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "stopped" in err and "Traceback" not in err and "Exception" not in err


def test_compact_makes_few_files_of_an_archive(node: Node, tmp_path: Path) -> None:
    out = tmp_path / "archive" / "out"
    compact = ["pipeline", "compact", *SPARK, "--out", str(out)]
    none = hubsub(*compact)
    assert none.returncode == 2 and "there is no archive with records" in none.stderr, none.stderr
    publish(node, 2_000)
    ran = hubsub(*command(node, tmp_path, "archive", "--once", "--option", "maxRowsPerBatch=300"))
    assert ran.returncode == 0, ran.stderr
    table = open_table(str(out))
    state, files = table.contents()
    ran = hubsub(*compact)
    assert ran.returncode == 0 and f"1 days compacted: {len(files)} files are 1" in ran.stderr, ran.stderr
    assert (table.state(), sum(file.rows for file in table.contents()[1])) == (state, 2_000)
    assert all((out / file.path).exists() for file in files), "who reads them goes on"


def test_sessions_and_devices_show_what_they_found(node: Node, tmp_path: Path) -> None:
    publish(node, 2_000)
    ran = hubsub(*command(node, tmp_path, "sessions", "--once", "--pattern", "chat:*"))
    assert ran.returncode == 0, ran.stderr
    assert "Sessions that are over" in ran.stdout and "Most users at once" in ran.stdout
    with BlockingClient(node.redis_url) as client:
        client.publish("devices/7/state", b'{"temperature": 20}')
        client.publish("devices/7/state", b'{"temperature": 21}')
        client.publish("devices/8/state", b"{")
    # The class says what names them: what is asked for here is for classes that do not.
    asked = ["--once", "--pattern", "devices/#", "--device", "other/{device}"]
    ran = hubsub(*command(node, tmp_path, "devices", *asked))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("temperature") == 1 and " 21 " in ran.stdout
    assert "not_json" in ran.stdout


def test_an_error_is_a_sentence_with_a_hint(node: Node, tmp_path: Path) -> None:
    nobody = hubsub(
        "pipeline",
        "activity",
        "--once",
        "--servers",
        "127.0.0.1:1",
        *SPARK,
        "--option",
        "retrySeconds=1",
        "--checkpoint",
        str(tmp_path / "c"),
        "--out",
        str(tmp_path / "o"),
    )
    assert nobody.returncode == 1
    assert "error: no server answers" in nobody.stderr and "hint: " in nobody.stderr
    assert "Traceback" not in nobody.stderr and "\tat " not in nobody.stderr
    wrong = hubsub("pipeline", "activity", "--option", "maxRows=5")
    assert wrong.returncode == 2 and "did you mean maxRowsPerBatch?" in wrong.stderr


def test_without_spark_the_error_names_the_package() -> None:
    code = "import importlib.metadata as m, sys\n"
    code += "def version(name): raise m.PackageNotFoundError(name)\n"
    code += "m.version = version\nsys.argv = ['hubsub', 'pipeline', 'activity', '--once']\n"
    code += "from hubsub.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr == "error: pyspark is not installed\nhint: pip install 'hubsub[spark]'\n"
