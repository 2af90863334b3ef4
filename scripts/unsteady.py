"""Which failed tests are run once more, alone, and what that comes to.

A test that fails among others and passes alone is unsteady: a defect to be mended, which is told and lets work land.
What fails alone too has failed, and so has a run in which much failed, or one that could not collect its tests.
"""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

AGAIN_MAX = 5
"""More failures than this are no accident."""
LINES = 12
"""Of an error, from its end, that the summary shows."""
TESTS_FAILED = 1
"""What pytest ends with where tests failed and nothing else went wrong."""


class Failure(NamedTuple):
    """A test that failed, or a file that could not be collected."""

    test: str
    """As pytest is told to run it."""
    is_test: bool
    error: str


def read(path: Path) -> list[Failure]:
    """What `tests/failures.py` wrote: the first failure of each test; nothing where pytest came to no end."""
    if not path.exists():
        return []
    failures = [Failure(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return list({failure.test: failure for failure in reversed(failures)}.values())[::-1]


def to_run_again(code: int, failures: list[Failure]) -> list[str]:
    """The tests that are run once more; none if the run has passed, or has failed for good.

    Args:
        code: That pytest ended with.
    """
    few = 0 < len(failures) <= AGAIN_MAX
    alone = code == TESTS_FAILED and few and all(failure.is_test for failure in failures)
    return [failure.test for failure in failures] if alone else []


def shown(failures: list[Failure]) -> str:
    """The part of the summary that tells of unsteady tests; empty without one."""
    rows = []
    for failure in failures:
        rows.append(f"  {failure.test}")
        rows += [f"    {line}" for line in failure.error.strip().splitlines()[-LINES:]]
    return "\n".join(["unsteady: failed among others, passed alone", *rows]) if rows else ""


def pytest(
    command: list[str], env: Mapping[str, str], directory: Path, say: Callable[[str], None]
) -> tuple[bool, list[Failure]]:
    """Runs pytest, and its few failed tests once more, one after the other in one process, with all they print.

    Args:
        command: With the options of the run among others; it names no tests, so it means all.
        env: Of both runs.
        directory: Where files of this run may be.
        say: Is told what is done.

    Returns:
        Whether it passed, and the tests that did only alone.
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
