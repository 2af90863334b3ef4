"""Paths, commands, flags, variables and keys in Dockerfile, compose.yaml and deploy/ exist.

They are parsed as the configuration and the command line parse them. Nothing is run in Docker or systemd,
except `systemd-analyze verify` where it is installed.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from hubsub.api.table import ROUTES
from hubsub.cli import COMMANDS
from hubsub.config import KEYS, Config, load, split_address, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = sorted((ROOT / "deploy").rglob("*.toml"))
PAGES = [
    ROOT / "Dockerfile",
    ROOT / "compose.yaml",
    *(p for p in sorted((ROOT / "deploy").rglob("*")) if p.is_file()),
]

RAFT_PORT = split_address(next(key for key in KEYS if key.name == "raft").kind.parse("0.0.0.0"))[1]
"""Port of the embedded coordinator if no key `raft` sets another."""

SECRET = {"HUBSUB_CLUSTER_SECRET": "what all nodes of it know"}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def serve(args: list[str], environ: Mapping[str, str]) -> Config:
    """The configuration of `hubsub serve ARGS…`, with its flags."""
    assert args[0] == "serve"
    command = typer.main.get_command(import_module(COMMANDS["serve"][0]).app)
    flags = command.make_context("hubsub serve", args[1:]).params
    file = flags.pop("config")
    assert file is None
    return load(None, flags, environ)


# -- configurations --


def test_there_are_samples_for_one_node_for_three_and_for_roles() -> None:
    names = {ids(path) for path in CONFIGURATIONS}
    assert {"deploy/single.toml", "deploy/roles/edge.toml", "deploy/roles/hub.toml"} < names
    assert {f"deploy/three-nodes/n{n}.toml" for n in (1, 2, 3)} < names


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=ids)
def test_each_sample_configuration_is_sound_also_with_what_it_only_suggests(
    path: Path, tmp_path: Path
) -> None:
    config = load(path, environ=SECRET)
    assert config.data == "/var/lib/hubsub", "where the unit of systemd lets it write"
    text = path.read_text()
    suggested = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    if "\ncoordinator = " in suggested:  # The file documents it as an alternative to `join`.
        suggested = re.sub(r"^join = .*$", "", suggested, flags=re.MULTILINE)
    trial = tmp_path / "suggested.toml"
    trial.write_text(suggested)
    assert load(trial, environ=SECRET).classes == config.classes


def test_three_nodes_differ_in_name_address_and_whom_they_join_and_in_nothing_else() -> None:
    tables = [tomllib.loads(path.read_text()) for path in CONFIGURATIONS if path.parent.name == "three-nodes"]
    own = [{key: table.pop(key, None) for key in ("node", "advertise", "join")} for table in tables]
    assert tables[0] == tables[1] == tables[2]
    assert own[0] == {"node": "n1", "advertise": "n1", "join": None}
    assert own[1] == {"node": "n2", "advertise": "n2", "join": ["n1:3224"]}
    assert own[2] == {"node": "n3", "advertise": "n3", "join": ["n1:3224"]}


def test_a_hub_opens_no_client_listener_and_an_edge_has_no_classes() -> None:
    hub, edge = (load(ROOT / f"deploy/roles/{name}.toml", environ=SECRET) for name in ("hub", "edge"))
    assert hub.role == ("hub",) and hub.redis is hub.mqtt is hub.ws is None and hub.link
    assert edge.role == ("edge",) and edge.redis and edge.link and not edge.classes
    assert all(address.endswith(f":{RAFT_PORT}") for address in edge.join)


# -- references common to all of them --


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_variable_that_is_named_means_something(page: Path) -> None:
    named = set(re.findall(r"\bHUBSUB_[A-Z_]+\b", page.read_text()))
    assert unknown_variables(dict.fromkeys(named, "x")) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_command_that_is_shown_is_one(page: Path) -> None:
    for shown in re.findall(r"\bhubsub ([a-z][^`#;\n]*)", page.read_text()):
        check_command(shown.split())


def check_command(words: list[str]) -> None:
    """Checks `hubsub WORDS…`: the command, its subcommand and each `--flag` exist."""
    name, *rest = words
    assert name in COMMANDS
    command: Any = typer.main.get_command(import_module(COMMANDS[name][0]).app)
    if hasattr(command, "commands"):
        command = command.commands[rest[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


# -- the image --


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, each in one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def image() -> dict[str, str]:
    """The last instruction of each kind."""
    return dict(instructions())


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(image()["ENV"]))


def ignored(path: str) -> bool:
    """Whether .dockerignore excludes the path: the last line that matches decides."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parents = [path, *(str(parent) for parent in Path(path).parents)][:-1] if "/" in path else [path]
        if any(fnmatch.fnmatchcase(one, pattern.replace("**/", "*")) for one in parents):
            verdict = not line.startswith("!")
    return verdict


def test_the_builder_gets_every_file_that_the_wheel_is_made_of_and_no_more() -> None:
    copied = [
        name
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for name in shlex.split(rest)[:-1]
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [
        "pyproject.toml",
        "Cargo.toml",
        "Cargo.lock",
        project["project"]["readme"],
        *project["project"]["license-files"],
    ]
    assert set(needed) <= set(copied)
    assert project["tool"]["maturin"]["manifest-path"].split("/")[0] in copied
    assert project["tool"]["maturin"]["python-source"] in copied
    for name in copied:
        assert (ROOT / name).exists() and not ignored(name), name
    assert not ignored("crates/hubsub-py/src/lib.rs") and not ignored("python/hubsub/py.typed")
    for name in (".git", "target", ".venv", "hubsub-data", "tests", "python/hubsub/_core.abi3.so"):
        assert ignored(name), name


def test_the_image_is_built_with_what_the_project_asks_for() -> None:
    versions = {
        rest.split("=")[0]: tuple(map(int, rest.split("=")[1].split(".")))
        for word, rest in instructions()
        if word == "ARG"
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert versions["PYTHON"] >= tuple(
        map(int, project["project"]["requires-python"].removeprefix(">=").split("."))
    )
    assert versions["RUST"] >= tuple(map(int, cargo["workspace"]["package"]["rust-version"].split(".")))
    assert f'"{project["build-system"]["requires"][0]}"' in (ROOT / "Dockerfile").read_text()


def test_the_image_serves_as_somebody_and_on_the_ports_that_it_tells() -> None:
    made = image()
    assert int(made["USER"].split(":")[0]) > 0 and made["STOPSIGNAL"] == "SIGTERM"
    entry = json.loads(made["ENTRYPOINT"])
    assert entry[0] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    environ = image_environment()
    assert unknown_variables(environ) == []
    config = serve([*entry[1:], *json.loads(made["CMD"])], environ)
    assert config.data == made["VOLUME"] == made["WORKDIR"]
    assert config.redis and config.http and config.insecure_open
    of_nodes = [key.kind.parse("0.0.0.0") for key in KEYS if key.name in ("link", "raft")]
    ports = [split_address(address)[1] for address in (config.redis, config.http, *of_nodes)]
    assert made["EXPOSE"].split() == list(map(str, ports))


def test_the_health_check_asks_where_the_node_listens_for_a_path_that_it_has() -> None:
    check = image()["HEALTHCHECK"]
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert found
    http = load(None, {}, image_environment()).http
    assert http and int(found[1]) == split_address(http)[1]
    assert found[2] in {route.path for route in ROUTES}
    program = json.loads(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "the health check", "exec")


def test_three_containers_find_each_other_by_name() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = compose["services"]
    assert list(services) == ["n1", "n2", "n3"]
    published: list[str] = []
    for name, service in services.items():
        environ = image_environment() | service["environment"]
        assert unknown_variables(environ) == []
        config = serve(service["command"], environ | SECRET)
        assert (config.node, config.advertise, service["hostname"]) == (name, name, name)
        assert all(split_address(address)[0] in services for address in config.join)
        assert bool(config.join) is (name != "n1"), "the first founds, the others join"
        assert config.link and all(address.endswith(f":{RAFT_PORT}") for address in config.join)
        assert service["volumes"] == [f"{name}:{config.data}"] and name in compose["volumes"]
        assert config.redis and config.http
        inner = [int(port.rpartition(":")[2]) for port in service["ports"]]
        assert inner == [split_address(config.redis)[1], split_address(config.http)[1]]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "there are no users yet"
        published += [port.rpartition(":")[0] for port in service["ports"]]
    assert len(set(published)) == len(published)


# -- systemd --


def unit() -> dict[str, list[str]]:
    """The unit's settings, each with its values."""
    settings: dict[str, list[str]] = {}
    for line in (ROOT / "deploy/hubsub.service").read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


def test_the_unit_starts_the_node_with_the_configuration_that_is_installed() -> None:
    made = unit()
    program, *args = shlex.split(made["ExecStart"][0])
    assert Path(program).name == "hubsub" and args[:2] == ["serve", "--config"]
    check_command(args)
    comments = [
        line[1:].split()
        for line in (ROOT / "deploy/hubsub.service").read_text().splitlines()
        if line.startswith("#")
    ]
    installed = {words[-1]: words[-2] for words in comments if words[:1] == ["install"]}
    assert {Path(source).name for source in installed.values()} <= {
        path.name for path in (ROOT / "deploy").iterdir()
    }
    config = load(ROOT / "deploy" / installed[args[2]], environ=SECRET)
    assert config.data == f"/var/lib/{made['StateDirectory'][0]}"
    environ = dict(pair.split("=", 1) for pair in made["Environment"])
    assert unknown_variables(environ) == [] and load(None, {}, environ).log_format == "json"


def test_the_unit_waits_for_a_stop_longer_than_the_node_drains() -> None:
    made = unit()
    assert (
        made["Type"] == ["notify"] and "$MAINPID" in made["ExecReload"][0] and "HUP" in made["ExecReload"][0]
    )
    stop = re.fullmatch(r"(\d+)min", made["TimeoutStopSec"][0])
    assert stop and int(stop[1]) * 60_000 > 10 * load(None, {}, {}).limits["drain_ms"]
    assert int(made["LimitNOFILE"][0]) >= load(None, {}, {}).limits["connections_max"]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy/hubsub.service").read_text()
    file = tmp_path / "hubsub.service"
    file.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    if shutil.which("systemd-analyze"):
        run = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
        )
        told = [line for line in run.stderr.splitlines() if "hubsub.service" in line]
        assert run.returncode == 0 and not told, run.stderr
