"""Only the intended lines are removed from Spark's stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hubsub.pipeline.stderr_filter import StderrFilter

START = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/21 20:52:28 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/21 20:52:28 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/21 20:52:30 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java
Starting Streaming TransformWithStateInPandas Python worker.

Streaming TransformWithStateInPandas Python worker finish init stage of Python runner. Received UDF from JVM: <f>.

"""
READER_GONE = """Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
IN_A_WORKER = """Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/mine.py", line 3, in send
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = READER_GONE.replace(
    "BrokenPipeError: [Errno 32] Broken pipe", "OSError: [Errno 28] No space left on device"
)
WORDS = """WARNING: something
26/11/21 20:52:30 WARN TaskSetManager: Lost task 0.0 in stage 1.0

26/11/21 20:52:30 ERROR Executor: Exception in task 0.0: Using Spark's default log4j profile: x
Exception in thread "main" java.lang.OutOfMemoryError
\tat java.base/java.lang.Thread.run(Thread.java:1)
Error: Could not find or load main class
"""


def filtered_stderr(text: str, here: bool = True) -> str:
    out: list[bytes] = []
    sieve = StderrFilter(out.append, here)
    for line in text.encode().splitlines(keepends=True):
        sieve.take(line)
    sieve.end()
    return b"".join(out).decode()


@pytest.mark.parametrize("noise", [START, READER_GONE, READER_GONE * 2])
def test_what_every_run_says_is_left_out(noise: str) -> None:
    assert filtered_stderr(noise) == ""
    assert filtered_stderr(noise + WORDS + noise) == WORDS


@pytest.mark.parametrize("text", [WORDS, IN_A_WORKER, OTHER, READER_GONE.partition("  ")[0], "\n\nx\n"])
def test_everything_else_stays_as_it_came(text: str) -> None:
    assert filtered_stderr(text) == text
    assert filtered_stderr(READER_GONE + text + READER_GONE) == text


def test_the_address_of_a_driver_matters_where_executors_are_elsewhere() -> None:
    assert "loopback" in filtered_stderr(START, here=False)


def test_what_a_process_died_of_is_said_before_what_follows() -> None:
    code = """
import os, subprocess, sys
from hubsub.pipeline.stderr_filter import filtered_stderr
try:
    with filtered_stderr(here=True) as stderr:
        subprocess.run([sys.executable, "-c", "raise SystemExit('it died')"], stderr=stderr, check=True)
except subprocess.CalledProcessError:
    os.write(2, b"we too\\n")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "it died\nwe too\n")


def test_after_a_signal_nothing_is_said_of_what_has_gone() -> None:
    code = """
import logging, os, socketserver, subprocess, sys, threading, warnings
from hubsub.pipeline.stderr_filter import silence_spark, filtered_stderr

def say():
    with filtered_stderr(here=True) as stderr:
        child = subprocess.Popen(["sh", "-c", "echo of Spark >&2"], stderr=stderr)
    child.wait()
    logging.error("of the gateway")
    warnings.warn("of Spark, in this process")
    worker = threading.Thread(target=lambda: 1 / 0)
    worker.start()
    worker.join()
    try:
        1 / 0
    except ZeroDivisionError:
        socketserver.BaseServer.handle_error(None, None, ("127.0.0.1", 1))

if sys.argv[1] == "hushed":
    silence_spark()
say()
"""
    said = {
        how: subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, timeout=60)
        for how in ("hushed", "loud")
    }
    assert all(run.returncode == 0 for run in said.values()), said
    assert said["hushed"].stderr == ""
    for what in ("of Spark\n", "of the gateway", "in this process", "ZeroDivisionError"):
        assert what in said["loud"].stderr
