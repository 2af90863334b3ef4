"""Retention waits for reports of the archive, but no longer than the disk limit allows."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from clients.servers import TIMEOUT_S, Server, until

from node.conftest import Start
from node.logged import DURABLE, figure, publish

pa = pytest.importorskip("pyarrow")

from node.arrow import log, path, refusal

KIB = 1 << 10
LIMITS = {
    "log_segment_bytes": 64 * KIB,
    "log_journal_bytes": 64 * KIB,
    "log_checkpoint_bytes": 64 * KIB,
    "log_checkpoint_ms": 50,
}
WAIT = 512 * KIB
CLASS = DURABLE | {"history": {"bytes": 64 * KIB, "archive_wait": WAIT}}


def begin(start: Start, data: Path, **cls: Any) -> Server:
    return start(config={"data": str(data)}, limits=LIMITS, classes=[CLASS | cls])


def said(server: Server, records: int) -> None:
    """Publishes `records` records of 1 KB each."""
    with server.connect() as connection:
        publish(connection, "chat:a", range(records), length=1_000)


def hub(server: Server) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(server.get("/v1/hubs/chat-0"))
    return shown


def tell(server: Server, offset: int, **more: Any) -> None:
    """Reports an offset as an archive does."""
    assert server.node
    body = {"offsets": {"1": offset}, "archived": True, "log": log(server)["log"]} | more
    request = urllib.request.Request(
        f"{server.node.http_url}/v1/queries/an-archive", json.dumps(body).encode(), method="PUT"
    )
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()


def test_what_is_not_archived_stays_until_it_is(start: Start, data: Path) -> None:
    server = begin(start, data)
    said(server, 300)
    shown = until(lambda: (row := hub(server))["archive_waiting_bytes"] > 150 * KIB and row)
    assert (shown["earliest"], shown["archived"], shown["archive_lost"]) == (1, None, 0)
    assert shown["bytes"] > 250 * KIB
    assert figure(server, "hubsub_hub_archive_waiting_bytes") > 150 * KIB
    tell(server, 150)
    shown = until(lambda: (row := hub(server))["earliest"] > 1 and row)
    assert 1 < shown["earliest"] <= 150 and shown["archived"] == 150
    tell(server, 301)
    shown = until(lambda: (row := hub(server))["archive_waiting_bytes"] == 0 and row)
    assert 150 < shown["earliest"] <= 301 and shown["bytes"] <= 128 * KIB
    assert not server.log_lines("records were removed that are not archived")


def test_a_restart_knows_what_was_archived(start: Start, data: Path) -> None:
    """The archive need not run at the restart, and newer records wait for it."""
    server = begin(start, data)
    said(server, 200)
    tell(server, 201)
    assert server.node
    assert server.node.stop() == 0
    server = begin(start, data)
    assert hub(server)["archived"] == 201
    said(server, 200)
    until(lambda: hub(server)["archive_waiting_bytes"] > 64 * KIB)
    shown = until(lambda: (row := hub(server))["earliest"] > 100 and row, "what is archived goes")
    assert shown["earliest"] <= 201 and shown["archive_lost"] == 0


def test_over_the_limit_the_oldest_go_and_are_told(start: Start, data: Path) -> None:
    server = begin(start, data)
    tell(server, 1)
    said(server, 800)
    line = json.loads(server.log_line("records were removed that are not archived"))
    shown = until(lambda: (row := hub(server))["bytes"] <= WAIT and row)
    assert (int(line["from"]), int(line["hub"]), line["level"]) == (1, 1, "warning")
    assert int(line["to"]) < shown["earliest"]
    assert shown["archive_lost"] == shown["earliest"] - 1 > 0
    assert figure(server, "hubsub_hub_unarchived_lost_total") == shown["archive_lost"]
    assert shown["bytes"] > WAIT - 128 * KIB, "no more go than must"
    gone = refusal(server, path("chat-0", from_=1))
    assert (gone.code, gone.body["first"], gone.body["end"]) == ("offsets_lost", 1, shown["earliest"])


def test_an_archive_of_some_rooms_is_none_to_wait_for(start: Start, data: Path) -> None:
    server = begin(start, data)
    said(server, 10)
    tell(server, 5, room_pattern="chat:a*")
    assert hub(server)["archived"] is None
    tell(server, 5, room_pattern="chat*")
    assert hub(server)["archived"] == 5


def test_offsets_that_the_log_does_not_have_are_not_archived(start: Start, data: Path) -> None:
    server = begin(start, data)
    said(server, 10)
    tell(server, 12)
    assert hub(server)["archived"] is None
    assert server.log_line("an archive has more than the log")
    tell(server, 11)
    tell(server, 4)
    assert hub(server)["archived"] == 11, "the furthest counts"
    with pytest.raises(urllib.error.HTTPError, match="409"):
        tell(server, 11, log="00")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log": "00", "offsets": {"1": 99}}'])
def test_what_cannot_be_read_after_a_restart_is_waited_for(start: Start, data: Path, text: str) -> None:
    server = begin(start, data)
    said(server, 10)
    tell(server, 8)
    assert server.node
    assert server.node.stop() == 0
    (data / "archived.json").write_text(text)
    assert hub(begin(start, data))["archived"] is None


def test_offsets_that_a_log_has_lost_are_not_taken_for_archived_again(start: Start, data: Path) -> None:
    server = begin(start, data)
    said(server, 10)
    tell(server, 11)
    assert server.node
    assert server.node.stop() == 0
    file = data / "archived.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"offsets": {"1": 500}}))
    server = begin(start, data)
    assert hub(server)["archived"] == 11
    assert json.loads(file.read_text())["offsets"] == {"1": 11}


def test_a_report_that_cannot_be_kept_counts_and_is_kept_with_the_next(start: Start, data: Path) -> None:
    """A report counts even if it cannot be persisted: on a full disk, retention must free space."""
    server = begin(start, data)
    said(server, 10)
    (data / "archived.json").mkdir()
    tell(server, 5)
    assert hub(server)["archived"] == 5
    assert server.log_line("archived offsets could not be kept")
    (data / "archived.json").rmdir()
    tell(server, 5)
    assert json.loads((data / "archived.json").read_text())["offsets"] == {"1": 5}
