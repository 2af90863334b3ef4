"""Tests, files and pages that documentation refers to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hubsub.cli.clients import COLUMNS
from hubsub.node.status import Client

PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "benches/README.md",
    "examples/README.md",
)


@pytest.fixture(scope="module")
def pages(repository: Path) -> dict[Path, str]:
    return {page: page.read_text() for pattern in PAGES for page in sorted(repository.glob(pattern))}


@pytest.mark.parametrize("page", ["docs/mission.md", "docs/guarantees.md", "docs/mqtt-conformance.md"])
def test_every_test_that_a_promise_names_exists(repository: Path, page: str) -> None:
    named = set(re.findall(r"`([\w/.-]+\.(?:py|rs))::(\w+)`", (repository / page).read_text()))
    assert len(named) > 10
    missing = []
    for path, test in sorted(named):
        file = repository / (path if path.endswith(".py") else f"crates/{path}")
        defined = rf"\b(?:def|fn) {test}\b"
        if not file.is_file() or not re.search(defined, file.read_text()):
            missing.append(f"{path}::{test}")
    assert not missing


def test_every_link_to_a_file_leads_somewhere(repository: Path, pages: dict[Path, str]) -> None:
    broken = []
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(repository)}: {target}")
    assert not broken


def test_every_redis_command_is_on_the_page_of_commands(repository: Path) -> None:
    table = (repository / "crates/hubsub-node/src/redis/commands.rs").read_text()
    page = (repository / "docs/from-redis.md").read_text().lower()
    commands = [name.split("|") for name in re.findall(r'^    "([a-z|-]+)" -?\d+ ', table, re.MULTILINE)]
    assert len(commands) > 80
    assert [name for name in commands if not all(re.search(rf"\b{part}\b", page) for part in name)] == []


def test_every_subcommand_is_in_the_help_of_its_command(repository: Path) -> None:
    folder = repository / "crates/hubsub-node/src/redis"
    helps = "".join(
        file.read_text() for file in sorted(folder.rglob("*.rs")) if file.name != "commands.rs"
    ).lower()
    table = (folder / "commands.rs").read_text()
    parts = re.findall(r'^    "[a-z]+\|([a-z-]+)" -?\d+ ', table, re.MULTILINE)
    assert len(parts) > 40
    assert [part for part in parts if part != "help" and not re.search(rf'"{part}\b', helps)] == []


def test_columns_of_clients_are_fields_of_a_client(repository: Path) -> None:
    fields = set(Client.__struct_fields__)
    assert set(COLUMNS) - fields == set()
    page = (repository / "python/hubsub/api/console/static/pages/clients.js").read_text()
    sorts = page[page.index("const SORTS") : page.index("};", page.index("const SORTS"))]
    assert set(re.findall(r"^  (\w+):", sorts, re.MULTILINE)) - fields == set()
