"""Runs Eclipse Paho's interoperability suite, from a directory with a clone of it, against nodes of this
tree.

    git clone https://github.com/eclipse/paho.mqtt.testing DIR
    .venv/bin/python scripts/paho.py DIR

Its 10 cases of MQTT 3.1.1 and its 27 of 5.0 run at the same time, each version alone on its node. They take
two and a half minutes, mostly waiting: so the suite is a part of `make soak`, if PAHO_TESTING names the
directory. Ends with 1 if a case failed that docs/mqtt-conformance.md does not justify.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hubsub.testing import Node

SUITES = {"3.1.1": ("client_test", 10), "5.0": ("client_test5", 27)}
"""Modules of the suite, with the number of their cases."""

JUSTIFIED = {("5.0", "test_subscribe_failure")}
"""Cases with a justified failure, explained in docs/mqtt-conformance.md."""

LIMITS = {"mqtt_keep_alive_s_max": 60}
"""The suite requests two minutes and expects the server to reply with one."""

REFUSED = "$own/t"
"""A topic that nobody may subscribe to: the suite asks its user for one, and does not pass the answer on."""

RUN = """
import importlib, json, sys, unittest

sys.path.insert(0, sys.argv[1])
suite = importlib.import_module(sys.argv[2])
suite.host, suite.port, suite.topic_prefix = sys.argv[3], int(sys.argv[4]), "client_test5/"
suite.topics = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
suite.wildtopics = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
suite.nosubscribe_topics = (sys.argv[5],)
suite.setData = lambda: None
tests = unittest.defaultTestLoader.loadTestsFromModule(suite)
names = [test.id().rpartition(".")[2] for group in tests for test in group]
result = unittest.TextTestRunner(sys.stderr, verbosity=2).run(tests)
wrong = {test.id().rpartition(".")[2]: text for test, text in result.failures + result.errors}
print()
print(json.dumps({name: wrong.get(name) for name in names}))
"""
"""Runs one of its modules in a process of its own, with settings from the command line."""

TIMEOUT_S = 600


def main(directory: Path) -> int:
    """Runs all cases; returns the exit code."""
    where = directory / "interoperability"
    if not (where / "client_test5.py").is_file():
        print(f"error: no interoperability suite: {directory}", file=sys.stderr)
        print("hint: git clone https://github.com/eclipse/paho.mqtt.testing", file=sys.stderr)
        return 2
    nodes = {version: Node(config={"mqtt": "127.0.0.1:0"}, limits=LIMITS) for version in SUITES}
    try:
        runs = {version: begin(where, version, node) for version, node in nodes.items()}
        seen = {version: end(version, run) for version, run in runs.items()}
    finally:
        for node in nodes.values():
            node.stop()
    return report(seen)


def begin(where: Path, version: str, node: Node) -> "subprocess.Popen[str]":
    """Starts the cases of a version.

    Args:
        where: Directory of the suite.
        version: Version of MQTT.
        node: The node to test.
    """
    host, port = node.mqtt
    command = [sys.executable, "-c", RUN, str(where), SUITES[version][0], host, str(port), REFUSED]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def end(version: str, run: "subprocess.Popen[str]") -> dict[str, str | None]:
    """The error of each case. If one is not justified, prints the suite's output to stderr."""
    out, said = run.communicate(timeout=TIMEOUT_S)
    cases: dict[str, Any] = json.loads(out.rstrip().rpartition("\n")[2])
    assert len(cases) == SUITES[version][1], f"another number of cases: {len(cases)}"
    if any(what is not None and (version, name) not in JUSTIFIED for name, what in cases.items()):
        print(said, file=sys.stderr)
    return cases


def report(seen: dict[str, dict[str, str | None]]) -> int:
    """Prints the result of each case; returns the exit code."""
    failed = 0
    for version, cases in seen.items():
        for name, what in cases.items():
            is_justified = (version, name) in JUSTIFIED
            word = "passed" if what is None else "justified" if is_justified else "FAILED"
            print(f"{version:7}{word:11}{name}")
            if word == "FAILED":
                failed += 1
                print("\n".join(f"    {line}" for line in (what or "").rstrip().splitlines()[-3:]))
    count = sum(what is None for cases in seen.values() for what in cases.values())
    print(f"{count} of {sum(map(len, seen.values()))} passed, {failed} failed without a reason")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/paho.py DIR")
    sys.exit(main(Path(sys.argv[1])))
