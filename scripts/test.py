"""Runs the parts of `make check` and `make test`, and reports the time of each.

python scripts/test.py              all parts, as `make test`
python scripts/test.py check        the parts that need no compiled core; check-py and check-rs are its halves
python scripts/test.py typos mypy   parts by name

All parts run even if one fails; the exit code is 1 if any did. The last lines list unsteady tests
(`scripts/unsteady.py`), and those that were skipped because a program is missing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import unsteady

BIN = Path(sys.executable).parent

CHECKS_RS: dict[str, list[str]] = {
    "rustfmt": ["cargo", "fmt", "--all", "--check"],
    "clippy": [
        "cargo",
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ],
    "panics": [sys.executable, "scripts/panics.py", "--check"],
    "crates": [sys.executable, "scripts/crates.py"],
    "floors": [sys.executable, "scripts/floors.py"],
}
"""Need no virtual environment."""
CHECKS_PY: dict[str, list[str]] = {
    "ruff format": [
        f"{BIN}/ruff",
        "format",
        "--check",
        "--quiet",
        "--diff",
        "python",
        "tests",
        "scripts",
        "examples",
        "benches",
    ],
    "ruff": [f"{BIN}/ruff", "check", "--quiet", "python", "tests", "scripts", "examples", "benches"],
    "mypy": [f"{BIN}/mypy", "--no-error-summary"],
    "imports": ["env", "PYTHONPATH=python:benches", f"{BIN}/lint-imports", "--no-logo"],
    "typos": [f"{BIN}/typos"],
    "words": [sys.executable, "scripts/plain_words.py", "--check"],
    "tables": ["env", "PYTHONPATH=python", f"{BIN}/python", "scripts/tables.py", "--check"],
}
"""Need the tools of the virtual environment, and no compiled core."""
CARGO, PYTEST = "cargo test", "pytest"
TESTS: dict[str, list[str]] = {
    "stubs": [f"{BIN}/stubtest", "hubsub._core", "--concise"],
    CARGO: ["cargo", "test", "--quiet", "--workspace", "--locked"],
    PYTEST: [f"{BIN}/pytest", "-n", "auto", "--durations=10"],
}

GROUPS = {"check": CHECKS_RS | CHECKS_PY, "check-rs": CHECKS_RS, "check-py": CHECKS_PY}
ALL = CHECKS_RS | CHECKS_PY | TESTS


def say(line: str) -> None:
    print(line, flush=True)


def run(parts: dict[str, list[str]], skips: Path) -> int:
    took: dict[str, float] = {}
    failed: list[str] = []
    wavering: list[unsteady.Failure] = []
    env = os.environ | {"HUBSUB_SKIPS": str(skips), "MYPYPATH": "python:benches"}
    if sys.prefix != sys.base_prefix:  # The build of the bindings takes its Python from there.
        env["VIRTUAL_ENV"] = sys.prefix
    for name, command in parts.items():
        say(f"-- {name}: {' '.join(command)}")
        start = time.monotonic()
        if name == CARGO:
            passed, found = unsteady.cargo(command, env, say)
        elif name == PYTEST:
            passed, found = unsteady.pytest(command, env, skips.parent, say)
        else:
            passed, found = subprocess.run(command, env=env, check=False).returncode == 0, []
        wavering += found
        if not passed:
            failed.append(name)
            say(f"-- {name} failed")
        took[name] = time.monotonic() - start
    total = sum(took.values())
    print("\npart            seconds  share")
    for name, seconds in took.items():
        mark = "  failed" if name in failed else ""
        print(f"{name:<14} {seconds:>8.1f}  {100 * seconds / total:>4.0f}%{mark}")
    print(f"{'all':<14} {total:>8.1f}")
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall parts passed")
    if wavering:
        print(f"\n{unsteady.shown(wavering)}\n")
    skipped = skips.read_text().strip() if skips.exists() else ""
    if skipped:
        print(f"skipped: {skipped}")
    return 1 if failed else 0


def main() -> int:
    if shutil.which("cargo") is None:
        os.environ["PATH"] += f"{os.pathsep}{Path.home() / '.cargo' / 'bin'}"
    parts: dict[str, list[str]] = {}
    for name in sys.argv[1:]:
        if name not in GROUPS | ALL:
            sys.exit(f"there is no such part: {name}\nhint: {', '.join(GROUPS | ALL)}")
        parts |= GROUPS[name] if name in GROUPS else {name: ALL[name]}
    parts = parts or ALL
    with tempfile.TemporaryDirectory(prefix="hubsub-test-") as directory:
        return run(parts, Path(directory, "skips"))


if __name__ == "__main__":
    sys.exit(main())
