"""`hubsub pipeline NAME` on a real node: in the tests' session, or as a separate process where that tests
more."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
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
from hubsub.errors import OptionError
from hubsub.pipeline.archive import open_table
from hubsub.pipeline.cli import NO_DELAY
from hubsub.testing import Node
from pipeline.programs import JAVA

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
SPARK = ("--master", "local[2]")
CONF = ("spark.driver.memory=1g", "spark.sql.shuffle.partitions=1", f"spark.driver.defaultJavaOptions={JAVA}")

Process = subprocess.Popen[str]


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})


def publish(node: Node, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Publishes chat events from number `first` on; returns them."""
    events = list(demo.events(first + count, 20, 50))[first:]
    with BlockingClient(node.redis_url) as client:
        client.publish_many((event["room"].encode(), json.dumps(event).encode()) for event in events)
    return events


def command(node: Node, directory: Path, job: str, *args: str) -> list[str]:
    places = ["--checkpoint", str(directory / job / "checkpoint"), "--out", str(directory / job / "out")]
    return [job, "--servers", node.http_url, *places, *args]


@pytest.fixture
def start() -> Iterator[Callable[[list[str]], Process]]:
    """Starts a pipeline command in its own process; all processes end with the test."""
    started: list[Process] = []

    def begin(arguments: list[str]) -> Process:
        conf = [part for setting in CONF for part in ("--conf", setting)]
        process = subprocess.Popen(
            [*HUBSUB, "pipeline", *arguments, *SPARK, *conf],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(process: Process, word: str) -> str:
    """Reads stderr up to the line with the word; returns that line."""
    seen = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if word in line:
            return line
    raise AssertionError(f"it ended without {word!r}: {''.join(seen)}")


def test_activity_is_what_pandas_counts_and_goes_on_with_what_is_new(
    node: Node, tmp_path: Path, pipeline: Callable[..., Any]
) -> None:
    events = publish(node, 3_000)
    job = command(node, tmp_path, "activity", "--once", "--event-time", "$.ts")
    ran = pipeline(*job)
    assert (tmp_path / "activity" / "activity.png").read_bytes()[:4] == b"\x89PNG"
    assert "3,000 records" in ran.err
    # The events are over a day old, so no delay is computed.
    assert {line.split()[-1] for line in ran.out.splitlines()[2:]} == {"-"} and "over a day old" in ran.err
    busiest = Counter(event["room"] for event in events).most_common(1)[0]
    rows = ran.out.splitlines()
    assert rows[1].split()[:2] == ["room", "messages"]
    assert rows[2].split()[:2] == [busiest[0], f"{busiest[1]:,}"]
    assert windows(tmp_path) == counted(events)

    # Later events count in the windows of their time.
    events += publish(node, 200, 3_000)
    assert "200 records" in pipeline(*job).err
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


def test_an_archive_that_is_killed_and_restarted_has_each_record_once(
    node: Node, tmp_path: Path, start: Callable[..., Process], pipeline: Callable[..., Any]
) -> None:
    """In Delta tables; `test_driver_kill` tests the other format."""
    slow = ("--trigger", "100ms", "--option", "maxRowsPerBatch=300")
    job = command(node, tmp_path, "archive", "--format", "delta", *slow)
    publish(node, 2_000)
    process = start(job)
    until(process, "archive: ")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    publish(node, 500, 2_000)
    assert "2,500" in pipeline(*job, "--once").out
    out = tmp_path / "archive" / "out"
    _, files = open_table(str(out), "delta").contents()
    rows = pd.concat([pd.read_parquet(out / file.path) for file in files])
    assert len(rows) == 2_500 and not rows.duplicated(["hub", "offset"]).any()


def at_the_end(node: Node) -> list[dict[str, Any]]:
    """The queries that have reported a lag of 0; waits for at least one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urlopen(f"{node.http_url}/v1/queries") as answer:
            if queries := [query for query in json.load(answer)["queries"] if query["lag"] == 0]:
                return queries
        select.select([], [], [], 0.01)
    raise AssertionError("no query is at the end")


def test_a_signal_ends_a_job_cleanly_and_the_node_knows_how_far_it_is(
    node: Node, tmp_path: Path, start: Callable[..., Process]
) -> None:
    publish(node, 1_000)

    def job(name: str, *args: str) -> Process:
        return start(command(node, tmp_path / name, "archive", *args))

    endless = job("endless", "--trigger", "100ms")
    once = job("once", "--once", "--option", "maxRowsPerBatch=1")
    until(endless, "1,000 records")
    queries = at_the_end(node)
    assert len(queries) == 1 and queries[0]["query"].startswith("archive-")
    shown = hubsub("hub", "show", queries[0]["hubs"][0]["name"], "--url", node.http_url).stdout
    assert f"query {queries[0]['query']}" in shown and "0 behind" in shown
    until(once, "archive: ")
    # A run that would end by itself and is stopped before has not completed.
    endless.send_signal(signal.SIGINT)
    # As a service manager or a shell ends a job: the signal reaches all its processes, Spark's too.
    os.killpg(once.pid, signal.SIGTERM)
    for process, code in ((endless, 0), (once, 143)):
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert ("Archived in" in out and " 1,000 " in out) == (code == 0), "what has no end shows what it did"
        assert "stopping" in err and "stopped" in err and "Traceback" not in err and "Exception" not in err
    with urlopen(f"{node.http_url}/v1/queries") as answer:
        # If Spark was ended, too, the run may not have reported its progress.
        assert True in [query["ended"] for query in json.load(answer)["queries"]]


def test_compact_makes_few_files_of_an_archive(
    node: Node, tmp_path: Path, pipeline: Callable[..., Any]
) -> None:
    out = tmp_path / "archive" / "out"
    with pytest.raises(OptionError, match="there is no archive with records"):
        pipeline("compact", "--out", out)
    publish(node, 2_000)
    pipeline(*command(node, tmp_path, "archive", "--once", "--option", "maxRowsPerBatch=300"))
    table = open_table(str(out))
    state, files = table.contents()
    assert f"1 day compacted: {len(files)} files are 1" in pipeline("compact", "--out", out).err
    assert (table.state(), sum(file.rows for file in table.contents()[1])) == (state, 2_000)
    assert all((out / file.path).exists() for file in files), "who reads them goes on"


def test_sessions_and_devices_show_what_they_found(
    node: Node, tmp_path: Path, pipeline: Callable[..., Any]
) -> None:
    publish(node, 2_000)
    shown = pipeline(*command(node, tmp_path, "sessions", "--once", "--pattern", "chat:*")).out
    assert "Sessions that are over" in shown and "Most users at once" in shown
    with BlockingClient(node.redis_url) as client:
        client.publish("devices/7/state", b'{"temperature": 20}')
        client.publish("devices/7/state", b'{"temperature": 21}')
        client.publish("devices/7/more", b'{"door": "open", "level": 1}')
        client.publish("devices/8/state", b"{")
    # The class has a device template, so this option does not apply; it is for classes without one.
    asked = ["--once", "--pattern", "devices/#", "--device", "other/{device}"]
    shown = pipeline(*command(node, tmp_path, "devices", *asked)).out
    devices, values = shown.split("Devices, the latest first:\n")[1].split("Latest values, ")
    assert [line.split()[:3] for line in devices.splitlines()] == [
        ["device", "topics", "keys"],
        ["7", "2", "3"],
    ]
    assert values.count("temperature") == 1 and " 21 " in values
    assert "not_json" in shown


def test_a_run_shows_tables_on_stdout_and_an_error_is_a_sentence_with_a_hint(
    node: Node, tmp_path: Path, start: Callable[..., Process]
) -> None:
    publish(node, 100)
    good = start(command(node, tmp_path / "good", "activity", "--once"))
    places = ["--checkpoint", str(tmp_path / "c"), "--out", str(tmp_path / "o")]
    nobody = start(["activity", "--once", "--servers", "127.0.0.1:1", "--option", "retrySeconds=3", *places])
    out, err = good.communicate(timeout=120)
    assert good.returncode == 0 and out.startswith("Busiest rooms:\n"), err
    said = re.sub(r"[\d,]+ a second", "N a second", err).splitlines()
    assert said == [
        "starting Spark",
        "activity: 100 records scanned in 1 batch, N a second, 0 behind",
        NO_DELAY,
        f"windows: file:{tmp_path}/good/activity/out",
        f"plot: {tmp_path}/good/activity/activity.png",
    ]
    out, err = nobody.communicate(timeout=120)
    assert (nobody.returncode, out) == (1, "")
    waits, error, hint = err.splitlines()
    assert waits.startswith("no server answers") and waits.endswith(" s more (option retrySeconds)")
    assert error.startswith("error: no server answers") and hint.startswith("hint: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_while_spark_starts(
    number: int, code: int, node: Node, tmp_path: Path, start: Callable[..., Process]
) -> None:
    process = start(command(node, tmp_path, "activity"))
    until(process, "starting Spark")
    process.send_signal(number)
    assert process.communicate(timeout=20)[1] == "stopping\n"
    assert process.returncode == code


def test_a_wrong_option_is_told_before_spark_starts() -> None:
    wrong = hubsub("pipeline", "activity", "--option", "maxRows=5")
    assert wrong.returncode == 2 and "did you mean maxRowsPerBatch?" in wrong.stderr
    assert "starting Spark" not in wrong.stderr


def test_without_spark_the_error_names_the_package() -> None:
    code = "import importlib.metadata as m, sys\n"
    code += "def version(name): raise m.PackageNotFoundError(name)\n"
    code += "m.version = version\nsys.argv = ['hubsub', 'pipeline', 'activity', '--once']\n"
    code += "from hubsub.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr == "error: pyspark is not installed\nhint: pip install 'hubsub[spark]'\n"
