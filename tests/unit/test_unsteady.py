"""scripts/unsteady.py: which failed tests are rerun alone, and how `make test` uses the result."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import os
from pathlib import Path

import failures

def pytest_runtest_logreport(report):
    failures.note(report)
    if report.skipped:
        Path(os.environ["HUBSUB_SKIPS"]).write_text("no")

pytest_collectreport = pytest_runtest_logreport

def pytest_terminal_summary():
    failures.write()
"""
"""The same hooks as in tests/conftest.py."""
TESTS = """
from pathlib import Path

import pytest

HERE = Path(__file__).parent

def fails_times(name, times):
    tries = HERE / name
    tries.touch()
    tries.write_text(tries.read_text() + "x")
    assert len(tries.read_text()) > times, f"{name} failed"

def test_steady():
    pass
"""


@pytest.fixture(scope="module")
def unsteady() -> Any:
    spec = importlib.util.spec_from_file_location("unsteady", ROOT / "scripts" / "unsteady.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "code, tests, files, expected",
    [
        (1, 1, 0, 1),
        (1, 5, 0, 5),
        (1, 6, 0, 0),
        (1, 0, 0, 0),  # Not a failed test.
        (1, 1, 1, 0),
        (2, 1, 0, 0),  # Interrupted, as by an error at collection.
        (3, 1, 0, 0),
    ],
)
def test_few_tests_have_another_try_and_nothing_else_has(
    unsteady: Any, code: int, tests: int, files: int, expected: int
) -> None:
    failures = [unsteady.Failure(f"a.py::test_{n}", True, "") for n in range(tests)]
    failures += [unsteady.Failure("b.py", False, "")] * files
    assert unsteady.to_run_again(code, failures) == [f"a.py::test_{n}" for n in range(expected)]


def test_a_test_that_failed_twice_in_a_run_counts_once_with_its_first_error(
    unsteady: Any, tmp_path: Path
) -> None:
    rows = [("a", "call"), ("b", "call"), ("a", "teardown")]
    path = tmp_path / "failures"
    path.write_text(json.dumps([{"test": test, "is_test": True, "error": error} for test, error in rows]))
    assert sorted(unsteady.read(path)) == [("a", True, "call"), ("b", True, "call")]
    assert unsteady.read(tmp_path / "none") == []


def test_the_summary_names_each_unsteady_test_with_the_end_of_its_error(unsteady: Any) -> None:
    error = "\n".join(f"line {number}" for number in range(50))
    shown = unsteady.shown([unsteady.Failure("a.py::test_a", True, error)]).splitlines()
    assert shown[:2] == ["unsteady: failed among others, passed alone", "  a.py::test_a"]
    assert shown[-1].strip() == "line 49" and len(shown) == 2 + unsteady.LINES
    assert unsteady.shown([]) == ""


@pytest.mark.parametrize(
    "tests, passes, unsteady_tests",
    [
        ("", True, []),
        ("def test_once(): fails_times('once', 1)", True, ["test_it.py::test_once"]),
        ("def test_always(): fails_times('always', 9)", False, []),
        ("def test_once(): fails_times('once', 1)\ndef test_always(): assert False", False, []),
        ("@pytest.mark.parametrize('n', range(6))\ndef test_many(n): fails_times(f'{n}', 1)", False, []),
        ("raise RuntimeError('no such module')", False, []),
        ("def test_gives_up(): (HERE / 'x').exists() and pytest.skip('no'); fails_times('x', 9)", False, []),
    ],
    ids=["none", "once", "always", "one of two", "many", "collection", "skipped alone"],
)
def test_a_run_passes_if_what_failed_passes_alone(
    unsteady: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tests: str,
    passes: bool,
    unsteady_tests: list[str],
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS + tests)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    monkeypatch.chdir(tmp_path)
    # Most of a start of pytest is the import of plugins that no test here needs.
    without = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    env = {
        **os.environ,
        **without,
        "PYTHONPATH": str(ROOT / "tests"),
        "HUBSUB_SKIPS": str(tmp_path / "skips"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]
    said: list[str] = []
    has_passed, failures = unsteady.pytest(command, env, tmp_path, said.append)
    assert (has_passed, [failure.test for failure in failures]) == (passes, unsteady_tests), (
        capfd.readouterr()
    )
    assert all("once failed" in failure.error for failure in failures)
    assert len(said) <= 1


CRATE = """
#[cfg(test)]
mod tests {
    fn fails_times(name: &str, times: usize) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tries-").to_owned() + name;
        let tries = std::fs::read_to_string(&path).unwrap_or_default() + "x";
        std::fs::write(&path, &tries).unwrap();
        assert!(tries.len() > times, "{name} failed");
    }

    #[test]
    fn steady() {
        fails_times("steady", 0);
    }
"""


@pytest.mark.parametrize(
    "tests, passes, unsteady_tests",
    [
        ("", True, []),
        ('#[test] fn once() { fails_times("once", 1); }', True, ["--lib tests::once"]),
        ('#[test] fn always() { fails_times("always", 9); }', False, []),
        (
            '#[test] fn once() { fails_times("once", 1); } #[test] fn aborts() { std::process::abort(); }',
            False,
            [],
        ),
        ("no Rust", False, []),
    ],
    ids=["none", "once", "always", "and an abort", "does not build"],
)
def test_a_run_of_cargo_passes_if_what_failed_passes_alone(
    unsteady: Any, tmp_path: Path, tests: str, passes: bool, unsteady_tests: list[str]
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").write_text(f"{CRATE}{tests}}}")
    manifest = tmp_path / "Cargo.toml"
    manifest.write_text("[package]\nname = 'it'\nversion = '0.1.0'\nedition = '2024'\n[workspace]\n")
    said: list[str] = []
    command = ["cargo", "test", "--quiet", "--offline", "--manifest-path", str(manifest)]
    passed, wavering = unsteady.cargo(
        command, os.environ | {"CARGO_TARGET_DIR": str(tmp_path / "target")}, said.append
    )
    assert (passed, [failure.test for failure in wavering]) == (passes, unsteady_tests), said
    assert all("once failed" in failure.error for failure in wavering)
