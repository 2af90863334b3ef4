"""Runs the parts of `make check` and `make test`, and reports the time of each.

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

CHECKS: dict[str, list[str]] = {
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
    "imports": [f"{BIN}/lint-imports", "--no-logo"],
    "stubs": [f"{BIN}/stubtest", "hubsub._core", "--concise"],
    "typos": [f"{BIN}/typos"],
    "panics": [sys.executable, "scripts/panics.py", "--check"],
}
CARGO, PYTEST = "cargo test", "pytest"
TESTS: dict[str, list[str]] = {
    CARGO: ["cargo", "test", "--quiet", "--workspace", "--locked"],
    PYTEST: [f"{BIN}/pytest", "-n", "auto", "--durations=10"],
}


def say(line: str) -> None:
    print(line, flush=True)


def run(parts: dict[str, list[str]], skips: Path) -> int:
    took: dict[str, float] = {}
    failed: list[str] = []
    wavering: list[unsteady.Failure] = []
    env = os.environ | {"HUBSUB_SKIPS": str(skips), "VIRTUAL_ENV": str(BIN.parent), "MYPYPATH": "python"}
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
    parts = CHECKS if sys.argv[1:] == ["check"] else CHECKS | TESTS
    with tempfile.TemporaryDirectory(prefix="hubsub-test-") as directory:
        return run(parts, Path(directory, "skips"))


if __name__ == "__main__":
    sys.exit(main())
