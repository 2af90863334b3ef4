"""scripts/plain_words.py: the phrases that it counts, and its check against the limits."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("plain_words", ROOT / "scripts" / "plain_words.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Returns the exit code of `--check` for a page; `told` may occur once."""

    def run(text: str) -> int:
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        monkeypatch.setattr(script, "files", lambda _: [page])
        return int(script.main())

    monkeypatch.setitem(script.LIMITS, "told", 1)
    monkeypatch.setattr(sys, "argv", ["plain_words.py", "--check"])
    return run


def test_a_count_at_its_limit_passes_and_one_above_fails_with_both_numbers(
    check: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("A client is told.\n") == 0
    assert capsys.readouterr().out == ""
    assert check("A client is told.\n\nIt tells another.\n") == 1
    name, count, _, limit = capsys.readouterr().out.partition(";")[0].split()
    assert (name, int(count), int(limit)) == ("told", 2, 1)


def test_each_count_has_a_limit(script: Any) -> None:
    assert set(script.LIMITS) == {*script.PHRASES, script.SHORT}


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.rs", '/// Told.\nfn said() { log("tell"); } // It is told.\n'),
        ("a.py", 'told = "said"\n"""Told."""\nlog("tell")  # It is told.\n'),
        ("a.md", "Told: `say` it.\n\n```\ntell\n```\n\n| name | it is told |\n"),
    ],
)
def test_prose_counts_and_code_does_not(script: Any, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert [found[0] for found in script.found_in(path)].count("told") == 2


def test_a_doc_comment_of_three_words_is_short_and_one_of_four_is_not(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.rs"
    for words, count in [("The room's name.", 1), ("The room's full name.", 0)]:
        path.write_text(f"/// {words}\nname: String,\n", encoding="utf-8")
        assert [found[0] for found in script.found_in(path)].count(script.SHORT) == count
