"""`hubsub config` and `hubsub doctor` without a node."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import hubsub

from hubsub.cli.doctor.directory import room
from hubsub.cli.doctor.finding import Finding
from hubsub.config import Config, resolve

from .http_server import http_server


def test_bad_configuration_stops_the_start_with_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('redis = "0.0.0.0"\nnoed = "x"\n')
    run = hubsub("serve", "--config", str(file), "--limit", "rooms_max=many")
    assert run.returncode == 2 and run.stdout == ""
    for text in ("redis: ", "'0.0.0.0:3221'", "did you mean 'node'?", "limits.rooms_max"):
        assert text in run.stderr


def test_config_check_and_show_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[class]]\nname = "a"\nhistory = { messages = 5 }\n')
    assert "1 class, " in hubsub("config", "check", str(file)).stderr
    run = hubsub("config", "show", "--json", HUBSUB_CONFIG=str(file), HUBSUB_REDIS=":7")
    table = json.loads(run.stdout)
    assert table["redis"] == "127.0.0.1:7" and table["sources"]["redis"] == "environment"
    assert table["class"][0]["history"] == {"messages": 5}


def test_a_file_that_needs_a_data_directory_is_checked_with_one(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[class]]\nname = "a"\ndurability = "durable"\nhistory = { bytes = "1GiB" }\n')
    run = hubsub("config", "check", str(file))
    assert run.returncode == 2 and run.stderr.startswith(f"error: bad configuration ({file}), 1 to mend:\n")
    assert 'hint: a directory of this node alone: data = "DIR", or --data DIR\n' in run.stderr
    run = hubsub("config", "check", str(file), "--data", str(tmp_path))
    assert run.returncode == 0 and "the configuration is sound: 1 class" in run.stderr
    run = hubsub("config", "show", str(file), "--json", "--data", str(tmp_path))
    assert json.loads(run.stdout)["data"] == str(tmp_path)
    run = hubsub("doctor", "--json", "--config", str(file))
    rows = {row["check"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert (run.returncode, rows["configuration"]["hint"]) == (1, f"hubsub config check {file}")
    file.write_text('redis = "127.0.0.1:0"\nhttp = "off"\n' + file.read_text())
    run = hubsub("doctor", "--json", "-c", str(file), "--data", str(tmp_path / "x"))
    rows = {row["check"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert rows["data"]["found"].startswith(f"{tmp_path / 'x'}, ") and "node" not in rows


def test_config_check_warns_of_an_unknown_variable_and_goes_on() -> None:
    run = hubsub("config", "check", HUBSUB_SHARD="2")
    warning, hint, sound = run.stderr.splitlines()
    assert run.returncode == 0 and sound.startswith("the configuration is sound")
    assert (warning, hint) == (
        "warning: this variable means nothing: HUBSUB_SHARD",
        "hint: did you mean 'HUBSUB_SHARDS'?",
    )


def test_the_sample_configuration_is_sound_and_makes_the_rooms_of_the_readme_durable(
    repository: Path,
) -> None:
    run = hubsub("config", "show", str(repository / "sample" / "hubsub.toml"), "--json")
    shown = json.loads(run.stdout)
    assert [made["match"] for made in shown["class"]] == [["chat:*"], ["devices/+/actions/#"], ["devices/#"]]
    assert all(made["durability"] == "durable" and made["history"]["bytes"] for made in shown["class"])
    assert f"/{shown['data']}/" in (repository / ".gitignore").read_text().splitlines(), "it is no source"


def doctor(config: Path, *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code of `hubsub doctor` with a configuration, and its checks by name."""
    run = hubsub("doctor", "--json", *args, HUBSUB_CONFIG=str(config))
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    return run.returncode, {row["check"]: row for row in rows}


def test_doctor_looks_at_the_data_directory(tmp_path: Path) -> None:
    config = tmp_path / "hubsub.toml"
    chat = (
        '[[class]]\nname = "chat"\nmatch = ["chat:*"]\ndurability = "durable"\nhistory = { bytes = "1GiB" }\n'
    )
    head = 'redis = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
    config.write_text(f'{head}data = "{tmp_path / "new" / "data"}"\n{chat}')
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (0, "ok") and "free" in checks["data"]["found"]
    config.write_text(config.read_text() + f"[limits]\nlog_reserve_bytes = {2**53}\n")
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (1, "bad") and "log_reserve_bytes" in checks["data"]["hint"]
    config.write_text(f'{head}data = "{config}/data"\n{chat}')
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (1, "bad") and "cannot be written" in checks["data"]["found"]


def logged(**limits: int) -> Config:
    cls = {"name": "chat", "durability": "durable", "history": {"bytes": "1GiB"}}
    return resolve({"class": [cls], "data": "d", "limits": limits}, {}, {})


def test_doctor_says_what_a_log_still_needs_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib, log = 1 << 20, tmp_path / "log"
    config = logged(log_reserve_bytes=8 * mib, log_journal_bytes=2 * mib)

    def with_free(free: int) -> Finding:
        disk = os.statvfs_result((4096, 1, 10**9, free, free, 1, 1, 1, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: disk)
        return room(config, tmp_path)

    assert with_free(15 * mib).state == "ok"
    bad = with_free(15 * mib - 1)
    assert bad.state == "bad" and "9 MiB for its reserve (log_reserve_bytes and 1 MiB)" in bad.hint
    assert "6 MiB for its journals (3 × log_journal_bytes)" in bad.hint
    (log / "journal").mkdir(parents=True)
    journals = [log / "journal" / f"0000000{n}.journal" for n in (1, 2, 3)]
    # The state after a start that found no space left.
    journals[0].write_bytes(b"")
    assert with_free(15 * mib).state == "ok" and with_free(15 * mib - 1).state == "bad"
    for journal in journals[:2]:
        journal.write_bytes(bytes(2 * mib))
    assert with_free(11 * mib - 1).state == "bad", "the third is made with the first record"
    journals[2].write_bytes(bytes(2 * mib))
    with open(log / "reserve", "wb") as reserve:
        reserve.truncate(5 * mib)
    assert with_free(4 * mib).state == "ok"
    bad = with_free(4 * mib - 1)
    assert bad.state == "bad" and "needs 4 MiB for its reserve" in bad.hint and "journals" not in bad.hint


@pytest.mark.parametrize("hidden", ["", "log/reserve", "log/journal"])
def test_doctor_tells_of_a_directory_that_it_may_not_look_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path) == str(tmp_path / hidden):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    found = room(logged(), tmp_path)
    assert (found.state, found.found) == ("bad", f"{tmp_path / hidden} cannot be read (Permission denied)")
    assert "permissions" in found.hint


def test_doctor_asks_the_node_that_it_is_given(tmp_path: Path) -> None:
    config = tmp_path / "hubsub.toml"
    config.write_text('redis = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n')
    code, checks = doctor(config, "--url", "http://127.0.0.1:1")
    assert (code, checks["node"]["state"]) == (1, "bad") and "no node answers" in checks["node"]["found"]
    with http_server(200, b'{"status": "fine"}') as url:
        code, checks = doctor(config, "--url", url)
    assert (code, checks["node"]["state"]) == (1, "bad") and "not from HubSub" in checks["node"]["found"]
