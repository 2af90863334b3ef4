"""scripts/crates.py: the crates from which HubSub may be built, by the rules of deny.toml."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("crates", ROOT / "scripts" / "crates.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return tomllib.loads((ROOT / "deny.toml").read_text())


def metadata(
    *crates: tuple[str, str, str | None], uses: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    """Output of `cargo metadata`.

    Args:
    crates: Name, licence and source of each; a source of `None` is this workspace.
    uses: Crate to the crates that it depends on.
    """
    return {
        "packages": [
            {"id": name, "name": name, "version": "1.0.0", "license": licence, "source": source}
            for name, licence, source in crates
        ],
        "resolve": {
            "nodes": [
                {"id": name, "deps": [{"pkg": used} for used in of]} for name, of in (uses or {}).items()
            ]
        },
    }


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only / MIT", True),
        ("MIT/Apache-2.0", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND Apache-2.0", True),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0", True),
        ("MIT AND (GPL-3.0-only OR ISC)", False),
        ("ISC OR MIT AND Apache-2.0", True),  # AND binds before OR.
        ("Apache-2.0 WITH LLVM-exception", False),
        ("Apache-2.0 WITH LLVM-exception OR MIT", True),
    ],
)
def test_a_licence_is_allowed_if_its_expression_can_be_met(
    script: Any, expression: str, expected: bool
) -> None:
    assert script.is_allowed(expression, {"MIT", "Apache-2.0"}) is expected


@pytest.mark.parametrize("text", ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT MIT", "MIT WITH"])
def test_a_text_that_is_no_licence_expression_is_an_error(script: Any, text: str) -> None:
    with pytest.raises(ValueError):
        script.is_allowed(text, {"MIT"})


def test_each_breach_names_its_crate_and_the_rule(script: Any, table: dict[str, Any]) -> None:
    found = script.breaches(
        metadata(
            ("fine", "MIT OR Apache-2.0", CRATES_IO),
            ("ours", "Apache-2.0", None),
            ("viral", "GPL-3.0-only", CRATES_IO),
            ("silent", "", CRATES_IO),
            ("borrowed", "MIT", "git+https://example.org/borrowed"),
            ("tokio", "MIT", CRATES_IO),
            ("pyo3", "MIT", CRATES_IO),
            ("hubsub-py", "Apache-2.0", None),
            uses={"ours": ["fine", "tokio"], "hubsub-py": ["pyo3"]},
        ),
        table,
    )
    assert found == [
        "viral 1.0.0: its licence is not in deny.toml: GPL-3.0-only",
        "silent 1.0.0: its licence is not in deny.toml: no licence",
        "borrowed 1.0.0: comes from git+https://example.org/borrowed",
        "ours: may not use tokio: openraft's runtime alone; tokio-util is in tests of hubsub-wire",
    ]


def test_an_exception_is_of_its_crate_alone(script: Any, table: dict[str, Any]) -> None:
    crates = metadata(("tiny-keccak", "CC0-1.0", CRATES_IO), ("other", "CC0-1.0", CRATES_IO))
    assert [line.split()[0] for line in script.breaches(crates, table)] == ["other"]


def test_several_versions_are_named(script: Any) -> None:
    crates = metadata(("one", "MIT", CRATES_IO), ("two", "MIT", CRATES_IO))
    assert script.duplicates(crates) == []
    crates["packages"].append({**crates["packages"][0], "version": "0.9.0"})
    assert script.duplicates(crates) == ["one 0.9.0, 1.0.0"]


def test_deny_toml_and_the_page_of_dependencies_name_the_same_licences(table: dict[str, Any]) -> None:
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "dependencies.md").read_text())
    found = re.search(
        r"may be used under (.*?)\. Two that only run during a build have others: (.*?)\. ", page
    )
    assert found, "the sentence is not on the page"
    assert re.split(r", | or ", found[1]) == table["licenses"]["allow"]
    exceptions = [f"{row['crate']} {' '.join(row['allow'])}" for row in table["licenses"]["exceptions"]]
    assert found[2].split(", ") == exceptions


def test_the_script_reads_all_that_deny_toml_bans(table: dict[str, Any]) -> None:
    """Keys that it does not know would hold for `cargo deny` alone."""
    assert set(table) == {"graph", "licenses", "bans", "sources"}
    assert set(table["licenses"]) == {"allow", "exceptions"}
    assert set(table["bans"]) == {"multiple-versions", "deny"}
    assert set(table["sources"]) == {"unknown-registry", "unknown-git", "allow-registry"}
    assert all(set(row) == {"crate", "wrappers", "reason"} for row in table["bans"]["deny"])
