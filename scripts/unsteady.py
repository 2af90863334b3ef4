"""Runs failed tests once more, alone, and evaluates the result.

A test that fails among others and passes alone is unsteady: a defect to be fixed, which is reported but does
not block. A test that also fails alone has failed, and so has a run with many failures, or one that could not
collect its tests.
"""

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

AGAIN_MAX = 5
"""More failures than this are no accident."""
LINES = 12
"""Last lines of an error in the summary."""
TESTS_FAILED = 1
"""pytest's exit code if tests failed and nothing else went wrong."""
CARGO_FAILED = re.compile(r"^    (?P<test>[\w:]+)$|^error: test failed, to rerun pass `(?P<binary>[^`]+)`$")
"""In the output of `cargo test` at the end of a binary: its failed tests, and how to run it alone."""


class Failure(NamedTuple):
    """A test that failed, or a file that could not be collected."""

    test: str
    """In the form of pytest's arguments."""
    is_test: bool
    error: str


def read(path: Path) -> list[Failure]:
    """Failures written by `tests/failures.py`, the first of each test; empty if pytest did not finish."""
    if not path.exists():
        return []
    failures = [Failure(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return list({failure.test: failure for failure in reversed(failures)}.values())[::-1]


def to_run_again(code: int, failures: list[Failure]) -> list[str]:
    """The tests that are run once more; none if the run has passed, or has failed for good.

    Args:
        code: pytest's exit code.
        failures: The failures of the run.
    """
    few = 0 < len(failures) <= AGAIN_MAX
    alone = code == TESTS_FAILED and few and all(failure.is_test for failure in failures)
    return [failure.test for failure in failures] if alone else []


def shown(failures: list[Failure]) -> str:
    """The part of the summary about unsteady tests; empty without one."""
    rows = []
    for failure in failures:
        rows.append(f"  {failure.test}")
        rows += [f"    {line}" for line in failure.error.strip().splitlines()[-LINES:]]
    return "\n".join(["unsteady: failed among others, passed alone", *rows]) if rows else ""


def pytest(
    command: list[str], env: Mapping[str, str], directory: Path, say: Callable[[str], None]
) -> tuple[bool, list[Failure]]:
    """Runs pytest, and its few failed tests once more, one after the other in one process, with all their
    output.

    Args:
        command: With the options of the first run; it names no tests, so it means all.
        env: Environment of both runs.
        directory: For files of this run.
        say: Takes messages about the progress.

    Returns:
        Whether it passed, and the tests that passed only alone.
    """
    first, second = directory / "failures", directory / "failures-again"
    code = subprocess.run(command, env={**env, "HUBSUB_FAILURES": str(first)}, check=False).returncode
    if code == 0:
        return True, []
    failures = read(first)
    tests = to_run_again(code, failures)
    if not tests:
        return False, []
    again = [*command, "-n", "0", "--tb=long", "-rA", *tests]
    say(f"-- once more, alone: {' '.join(tests)}")
    skips = directory / "skips-again"
    env = {**env, "HUBSUB_FAILURES": str(second), "HUBSUB_SKIPS": str(skips)}
    code = subprocess.run(again, env=env, check=False).returncode
    has_passed = code == 0 and not skips.exists()
    return has_passed, failures if has_passed else []


def cargo(
    command: list[str], env: Mapping[str, str], say: Callable[[str], None]
) -> tuple[bool, list[Failure]]:
    """Runs `cargo test`, and its few failed tests once more, one after the other.

    Args:
        command: Without arguments for the binaries.
        env: Environment of all runs.
        say: Takes each output line of the first run, and messages about the progress.

    Returns:
        Whether it passed, and the tests that passed only alone.
    """
    printed = []
    run = [*command, "--no-fail-fast"]
    with subprocess.Popen(
        run, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in map(str.rstrip, process.stdout):
            printed.append(line)
            say(line)
    if process.returncode == 0:
        return True, []
    failures = of_cargo(printed)
    if not 0 < len(failures) <= AGAIN_MAX:
        return False, []
    for failure in failures:
        *binary, test = failure.test.split()
        say(f"-- once more, alone: {failure.test}")
        again = subprocess.run([*command, *binary, "--", "--exact", test], env=env, check=False)
        if again.returncode != 0:
            return False, []
    return True, failures


def of_cargo(printed: list[str]) -> list[Failure]:
    """The failed tests, each as the binary's arguments and its name; none if anything else failed too."""
    failures: list[Failure] = []
    tests: list[str] = []
    binaries = 0
    for line in printed:
        found = CARGO_FAILED.match(line)
        if line == "failures:":
            tests = []
        elif found and found["test"]:
            tests.append(found["test"])
        elif found:
            if not tests:
                return []
            binaries += 1
            failures += [
                Failure(f"{found['binary']} {test}", True, cargo_error(printed, test)) for test in tests
            ]
            tests = []
    failed = next(
        (line.split()[1] for line in printed if re.match(r"error: \d+ targets? failed:", line)), "0"
    )
    return failures if binaries == int(failed) else []


def cargo_error(printed: list[str], test: str) -> str:
    """Output of a failed test, without its stack trace."""
    if f"---- {test} stdout ----" not in printed:
        return ""
    start = printed.index(f"---- {test} stdout ----") + 1
    ends = ("stack backtrace:", "failures:", "note: run with")
    return "\n".join(itertools.takewhile(lambda line: not line.startswith((*ends, "---- ")), printed[start:]))
