"""Tests, files and pages that documentation refers to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
