"""Rules that Python and the core both implement must agree."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

core = pytest.importorskip("hubsub._core", reason="needs hubsub-core")

from hubsub.config import LIMITS, Bad, resolve
from hubsub.config.matching import parse_pattern, parse_template, room_of
from hubsub.errors import BY_CODE
from hubsub.node import core_config
from hubsub.version import VERSION


def test_limits_and_their_defaults_agree() -> None:
    assert core.limits_default() == {limit.name: limit.default for limit in LIMITS if limit.owner == "core"}


def test_error_codes_lines_and_retryability_agree() -> None:
    assert core.error_codes()
    for code, line, retryable in core.error_codes():
        cls = BY_CODE[code]
        assert (cls.resp, cls.retryable) == (line, retryable)
    ours = {cls.code for cls in BY_CODE.values() if cls.__base__ is BY_CODE["refused"]}
    assert ours == {code for code, _, _ in core.error_codes()}


def test_versions_agree(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    cargo = tomllib.loads((repository / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert core.__version__ == VERSION == project == cargo


def test_the_default_configuration_is_one_that_the_core_takes() -> None:
    core.Core(core_config(resolve({}, {}, {}), incarnation=1))


def test_a_missing_unknown_or_bad_key_is_named() -> None:
    good = core_config(resolve({}, {}, {}), incarnation=1)
    for key in good:
        with pytest.raises(ValueError, match=key):
            core.Core({k: v for k, v in good.items() if k != key})
    with pytest.raises(ValueError, match="strange"):
        core.Core(good | {"strange": 1})
    with pytest.raises(ValueError, match="shards"):
        core.Core(good | {"shards": 0})
    with pytest.raises(ValueError, match="rooms_mx"):
        core.Core(good | {"limits": {**good["limits"], "rooms_mx": 1}})


def table(name: str, pattern: str, room: str | None = None) -> dict[str, Any]:
    (cls,) = resolve({"class": [{"name": name, "match": [pattern]}]}, {}, {}).classes
    defaults = core_config(resolve({"class": [{"name": name}]}, {}, {}), 1)["classes"][-1]
    return defaults | {"match": list(cls.match), "room": room}


LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x", "+", "#", "ab"]), min_size=1, max_size=4).map("/".join)
GLOBS = st.text(alphabet="ab*?[]^-\\", min_size=1, max_size=8)
TOPICS = st.lists(st.sampled_from(["a", "b", "", "$x", "ab", "ba"]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=500)
@given(
    LEVELS | GLOBS | GLOBS.map("glob:".__add__), TOPICS | st.text(alphabet="ab-^]\\", min_size=1, max_size=6)
)
def test_patterns_are_read_alike(pattern: str, topic: str) -> None:
    assume(topic)
    # The check leaves unclosed character classes to the core.
    assume("[" not in pattern or re.search(r"\[[^\]\\-]+\]", pattern))
    try:
        ours = parse_pattern(pattern).fullmatch(topic) is not None
    except Bad:
        with pytest.raises(ValueError):
            core.room_of([table("x", "x") | {"match": [pattern]}], False, topic.encode())
        return
    _, name = core.room_of([table("x", pattern)], False, topic.encode())
    assert ours == (name == "x")


@given(LEVELS, TOPICS)
def test_templates_yield_the_same_rooms(template: str, topic: str) -> None:
    # Topics that begin with `$` belong to the node; no user template applies to them.
    assume(topic and not topic.startswith("$") and template != "topic")
    try:
        levels = parse_template(template)
    except Bad:
        with pytest.raises(ValueError):
            core.room_of([table("x", "glob:*", template)], False, topic.encode())
        return
    assert levels is not None
    room, _ = core.room_of([table("x", "glob:*", template)], False, topic.encode())
    assert room.decode() == room_of(levels, topic)


def test_a_hash_tag_names_the_room_where_tags_are_on() -> None:
    assert core.room_of([], True, b"{lobby}.typing") == (b"lobby", "default")
    assert core.room_of([], False, b"{lobby}.typing") == (b"{lobby}.typing", "default")


def test_a_forked_child_gets_a_named_error() -> None:
    code = """
import os, sys
from hubsub import _core
from hubsub.config import resolve
from hubsub.node import core_config
core = _core.Core(core_config(resolve({"redis": "127.0.0.1:0", "shards": 1}, {}, {}), 1))
core.start()
pid = os.fork()
if pid == 0:
    try:
        core.room(1, b"x")
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
core.stop(0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "fork" in run.stdout, (run.stdout, run.stderr)
