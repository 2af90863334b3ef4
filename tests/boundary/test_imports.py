"""Import rules that import-linter cannot check: compiled modules and missing packages."""

import ast
import subprocess
import sys
from pathlib import Path


def imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_core_has_one_door_and_the_door_one_user(repository: Path) -> None:
    package = repository / "python" / "hubsub"
    users: dict[str, set[str]] = {"hubsub._core": set(), "hubsub._native": set()}
    for file in package.rglob("*.py"):
        for name in imports(file) & set(users):
            users[name].add(file.relative_to(package).as_posix())
    assert users["hubsub._core"] == {"_native.py"}
    assert {user.partition("/")[0] for user in users["hubsub._native"]} == {"node"}


def test_the_client_works_without_core_and_server_parts() -> None:
    missing = ["hubsub._core", "msgspec", "starlette", "uvicorn", "structlog", "typer", "rich"]
    code = f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
    code += "import hubsub\nprint(hubsub.Client, hubsub.BlockingClient, hubsub.HubSubError)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, hubsub; print(sorted(m for m in sys.modules if m.startswith('hubsub')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "['hubsub', 'hubsub.version']"


def test_executors_need_pyspark_and_pyarrow_and_nothing_else() -> None:
    missing = [
        "hubsub._core",
        "msgspec",
        "starlette",
        "uvicorn",
        "structlog",
        "typer",
        "rich",
        "pandas",
        "deltalake",
    ]
    code = f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
    code += "import pyspark_hubsub, hubsub.pipeline.records\nprint(pyspark_hubsub.DefaultSource.name())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "hubsub"


def test_looking_for_sources_loads_no_arrow() -> None:
    """Spark imports `pyspark_hubsub` in sessions that never use it."""
    code = "import sys, pyspark_hubsub; print([m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'pandas')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr
