"""Configuration: sources, kinds, relations, rendering."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.config import (
    KEYS,
    LIMITS,
    Bad,
    Config,
    Limit,
    load,
    parse_duration,
    reloaded,
    resolve,
    room_classes,
    unknown_variables,
)
from hubsub.config.kinds import FLAG, SIZE_UNITS, TIME_UNITS, address, is_loopback, parse_size
from hubsub.config.render import reference, show, toml
from hubsub.config.variables import OTHERS
from hubsub.errors import ConfigError


def problems(file: dict[str, Any] | None = None, flags: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(file or {}, flags or {}, environ)
    return str(caught.value)


def config(file: dict[str, Any] | None = None, flags: dict[str, Any] | None = None, **environ: str) -> Config:
    return resolve(file or {}, flags or {}, environ)


def test_defaults_are_sound() -> None:
    defaults = config()
    assert (defaults.redis, defaults.http, defaults.mqtt) == ("127.0.0.1:3221", "127.0.0.1:3220", None)
    assert defaults.classes == () and defaults.shards >= 1 and defaults.node
    large = config({"memory": "1024GiB"}).limits
    assert all(large[limit.name] == limit.default for limit in LIMITS)


def test_flag_beats_environment_beats_file_beats_default() -> None:
    file = {"redis": "127.0.0.1:1", "http": "127.0.0.1:1", "node": "file"}
    resolved = config(file, {"redis": ":3"}, HUBSUB_REDIS="127.0.0.1:2", HUBSUB_HTTP="127.0.0.1:2")
    assert (resolved.redis, resolved.http, resolved.node) == ("127.0.0.1:3", "127.0.0.1:2", "file")
    assert resolved.sources["redis"] == "flag"
    assert resolved.sources["http"] == "environment"
    assert resolved.sources["node"] == "file"
    assert resolved.sources["shards"] == "default"


def test_an_empty_value_counts_as_not_given_wherever_it_stands() -> None:
    resolved = config({"data": ""}, {"data": "", "http": ""}, HUBSUB_DATA="", HUBSUB_HTTP="off")
    assert (resolved.data, resolved.http) == (None, None)
    assert resolved.sources["data"] == "default"


def test_shards_are_counted_where_the_system_tells_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert config().shards >= 1


def test_limits_come_from_file_environment_and_flag() -> None:
    resolved = config(
        {"limits": {"rooms_max": 1, "frame_bytes_max": "1MiB", "handshake_ms": "3s"}},
        {"limits": ["rooms_max=3"]},
        HUBSUB_LIMITS_ROOMS_MAX="2",
        HUBSUB_LIMITS_DRAIN_MS="2",
    )
    limits = resolved.limits
    assert (limits["rooms_max"], limits["frame_bytes_max"], limits["handshake_ms"]) == (3, 1 << 20, 3_000)
    assert limits["drain_ms"] == 2
    assert resolved.sources["limits.rooms_max"] == "flag"


def test_a_resolved_configuration_is_frozen() -> None:
    resolved: Any = config()
    with pytest.raises(AttributeError):
        resolved.redis = "x"
    with pytest.raises(TypeError):
        resolved.limits["rooms_max"] = 1


def test_an_unknown_key_names_the_nearest_one() -> None:
    text = problems({"redsi": ":1", "limits": {"rooms_mx": 1}, "class": [{"name": "a", "histroy": {}}]})
    for hint in ("'redis'", "'rooms_max'", "'history'"):
        assert f"did you mean {hint}?" in text


def test_several_bad_values_are_all_reported() -> None:
    text = problems({"shards": 0, "redis": "nowhere:x", "limits": {"rooms_max": -1}}, HUBSUB_LOG_LEVEL="loud")
    for key in ("shards", "redis", "limits.rooms_max", "log_level"):
        assert key in text
    assert "4 to mend" in text


def test_a_bad_value_of_the_environment_names_its_variable() -> None:
    environ = {
        "HUBSUB_LOG_LEVEL": "loud",
        "HUBSUB_LIMITS_ROOMS_MAX": "many",
        "HUBSUB_HTTP": "0.0.0.0:1",
        "HUBSUB_LIMITS_INLINE_BYTES_MAX": "1GiB",
    }
    text = problems({"limits": {"frame_bytes_max": "1MiB"}, "redis": "0.0.0.0:1"}, **environ)
    for where in (
        "log_level, from HUBSUB_LOG_LEVEL: ",
        "limits.rooms_max, from HUBSUB_LIMITS_ROOMS_MAX: ",
        "http, from HUBSUB_HTTP: ",
        "limits.inline_bytes_max, from HUBSUB_LIMITS_INLINE_BYTES_MAX: must not be above",
        "\nredis: ",
    ):
        assert where in text, text
    assert "from" not in problems({}, {"log_level": "quiet"}, HUBSUB_LOG_LEVEL="loud"), (
        "the flag is the bad one"
    )


def test_an_unknown_variable_is_told_with_the_nearest_known_one() -> None:
    environ = {
        "HUBSUB_REDSI": ":1",
        "HUBSUB_ROOMS_MAX": "1",
        "HUBSUB_QQQQQ": "x",
        "HUBSUB_EMPTY": "",
        "HOME": "x",
    }
    assert unknown_variables(environ) == [
        ("HUBSUB_QQQQQ", None),
        ("HUBSUB_REDSI", "did you mean 'HUBSUB_REDIS'?"),
        ("HUBSUB_ROOMS_MAX", "did you mean 'HUBSUB_LIMITS_ROOMS_MAX'?"),
    ]
    services = ("SERVICE_HOST", "SERVICE_PORT_REDIS", "PORT", "PORT_3221_TCP", "PORT_3221_TCP_ADDR")
    assert unknown_variables({f"HUBSUB_{name}": "x" for name in services}) == []


def test_every_variable_that_the_project_reads_is_known(repository: Path) -> None:
    files = [
        repository / "Makefile",
        *repository.glob("benches/hubsub_bench/*.py"),
        *repository.glob("python/hubsub/**/*.py"),
        *repository.glob("scripts/*"),
    ]
    files += [repository / "tests" / "conftest.py", repository / "tests" / "clients" / "raw.py"]
    text = "\n".join(file.read_text() for file in files if file.is_file() and file.name != "variables.py")
    names = set(re.findall(r"\bHUBSUB_[A-Z][A-Z_]*[A-Z]\b", text)) - {"HUBSUB_LIMITS_NAME"}
    assert set(OTHERS) <= names
    assert unknown_variables(dict.fromkeys(names, "x")) == []


@pytest.mark.parametrize("durability", ["durable", "replicated"])
def test_a_class_with_a_log_needs_a_directory_and_a_bound_on_its_bytes(durability: str) -> None:
    logged = {"name": "a", "durability": durability}
    sized = {**logged, "history": {"bytes": "64MiB"}}
    text = problems({"class": [logged], "data": "d"})
    assert "class a, durability: needs `history.bytes`" in text and repr(durability) in text
    assert f"data: is needed: class a is {durability}" in problems({"class": [sized]})
    assert config({"class": [sized], "data": "d"}).classes[0].is_logged
    assert "class a, idle_ms: is for rooms without a log" in problems(
        {"class": [{**sized, "idle_ms": "1h"}], "data": "d"}
    )


def test_a_history_that_is_smaller_than_what_a_log_has_at_least_is_refused() -> None:
    def logged(size: str) -> list[dict[str, Any]]:
        return [{"name": "a", "durability": "durable", "history": {"bytes": size}}]

    text = problems({"class": logged("63MiB"), "data": "d"})
    assert "class a, history.bytes: must not be below limits.log_segment_bytes (67108864)" in text
    assert "a smaller limits.log_segment_bytes" in text
    smaller = {"log_segment_bytes": "1MiB"}
    assert config({"class": logged("1MiB"), "data": "d", "limits": smaller}).classes[0].is_logged
    assert "must be between 1024 and" in problems({"class": [{"name": "a", "history": {"bytes": "10"}}]})


@pytest.mark.parametrize("listener", ["redis", "http"])
def test_an_open_bind_needs_insecure_open(listener: str) -> None:
    assert "--insecure-open" in problems({listener: "0.0.0.0:1"})
    assert getattr(config({listener: "0.0.0.0:1", "insecure_open": True}), listener) == "0.0.0.0:1"


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        (
            "hosts",
            ["hub.example:4000", "https://hub.example", "hub.example.", "[::1]", "hüb.example", "a b", ""],
            ["hub.example", "HUB", "*"],
        ),
        (
            "ws_origins",
            ["https://chat.example/", "chat.example", "https://", "https://a b", ""],
            ["https://chat.example", "http://[::1]:8000", "null", "*"],
        ),
    ],
)
def test_what_no_browser_says_is_refused_where_it_would_never_match(
    key: str, bad: list[str], good: list[str]
) -> None:
    assert getattr(config({key: good}), key) == tuple(good)
    for value in bad:
        assert f"{key}: must be" in problems({key: [value]}), value


def test_a_node_is_called_as_its_listeners_are_and_as_it_is_advertised() -> None:
    listeners = {"http": "n1.example:1", "ws": "n2.example:2", "insecure_open": True}
    names = config({**listeners, "advertise": "n3.example", "hosts": "n4.example"})
    assert {f"n{n}.example" for n in range(1, 5)} <= set(names.names)


def test_a_history_needs_a_bound_on_memory() -> None:
    assert "needs `messages` or `bytes`" in problems({"class": [{"name": "a", "history": {"age": "7d"}}]})


def test_a_class_with_history_catches_up_by_default() -> None:
    tables = [{"name": "a", "match": ["a*"], "history": {"bytes": "1GiB", "age": "7d"}}, {"name": "b"}]
    a, b = config({"class": tables}).classes
    assert (a.on_slow, b.on_slow) == ("catch-up", "disconnect")
    assert a.history is not None
    assert (a.history.messages, a.history.bytes, a.history.age_ms) == (0, 1 << 30, 7 * 86_400_000)


def test_catch_up_without_history_is_refused() -> None:
    assert "needs a `history`" in problems({"class": [{"name": "a", "on_slow": "catch-up"}]})


def test_a_key_of_a_table_is_read_there_and_named_so() -> None:
    assert config().phoenix_topics == ("*",)
    assert config({"phoenix": {"topics": ["chat:*", "a/+"]}}).phoenix_topics == ("chat:*", "a/+")
    assert config({"phoenix": {"topics": []}}).phoenix_topics == ()
    assert config({"phoenix": {"topics": ["a"]}}, HUBSUB_PHOENIX_TOPICS="b,c").phoenix_topics == ("b", "c")
    assert "phoenix.topics: has `#` in a wrong place" in problems({"phoenix": {"topics": ["mqtt:a/#/b"]}})
    assert "phoenix.topic: is no key" in problems({"phoenix": {"topic": ["a"]}})
    assert "phoenix_topics: is no key" in problems({"phoenix_topics": ["a"]})
    assert "must be a table" in problems({"phoenix": ["a"]})
    shown = show(config({"phoenix": {"topics": ["chat:*"]}}))
    assert config(tomllib.loads(shown)).phoenix_topics == ("chat:*",)


def test_class_names_are_unique() -> None:
    assert "has the name of a class before it" in problems({"class": [{"name": "a"}, {"name": "a"}]})


def test_a_limit_above_the_one_it_lies_in_is_refused() -> None:
    text = problems({"limits": {"output_bytes_max": 4096, "output_soft_bytes": 4097}})
    assert "limits.output_soft_bytes: must not be above limits.output_bytes_max (4096): 4097" in text
    text = problems({"limits": {"transaction_bytes_max": 4097, "input_shard_bytes_max": 4096}})
    assert "limits.transaction_bytes_max: must not be above limits.input_shard_bytes_max (4096): 4097" in text


def test_a_limit_that_nobody_set_follows_the_one_it_lies_in() -> None:
    limits = config({"limits": {"output_shard_bytes_max": 4096, "frame_bytes_max": 2000}}).limits
    assert limits["output_bytes_max"] == limits["output_soft_bytes"] == 4096
    assert limits["inline_bytes_max"] == limits["topic_bytes_max"] == 2000
    limits = config({"limits": {"input_shard_bytes_max": 4096}}).limits
    assert limits["transaction_bytes_max"] == limits["frame_bytes_max"] == 4096


def test_a_file_that_is_no_toml_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("a = = 1")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert str(file) in str(caught.value) and "is not TOML" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.toml", environ={})
    assert "cannot be read" in str(caught.value)
    file.write_text("shards = 0")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert str(caught.value).startswith(f"bad configuration ({file}), 1 to mend:\nshards: ")


@pytest.mark.parametrize("name", ["x y", " ", "a/b", "/", "x" * 256])
def test_a_class_has_a_name_that_keys_and_commands_can_have(name: str) -> None:
    assert "must have no space, no / and at most 255 bytes" in problems(
        {"class": [{"name": name, "match": ["a"]}]}
    )
    with pytest.raises(ConfigError, match="no space"):
        room_classes([{"name": name, "match": ["a"]}], config())


@pytest.mark.parametrize(
    "file", [{"limits": 3}, {"class": {}}, {"class": [3]}, {"class": [{}]}, {"redis": []}]
)
def test_a_value_of_the_wrong_shape_is_a_problem_and_no_crash(file: dict[str, Any]) -> None:
    assert problems(file)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([key.name for key in KEYS] + ["limits", "class", "x"])


@given(st.dictionaries(NAMES, JUNK, max_size=4), st.lists(st.text(max_size=12), max_size=2))
def test_any_content_resolves_or_is_refused_with_problems(file: dict[str, Any], limits: list[str]) -> None:
    try:
        resolved = resolve({k: v for k, v in file.items() if v is not None}, {"limits": limits}, {})
    except ConfigError as error:
        assert error.problems and str(error)
    else:
        assert tomllib.loads(show(resolved))


@given(st.integers(0, 10**9), st.sampled_from(sorted(TIME_UNITS)))
def test_a_duration_reads_in_every_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * TIME_UNITS[unit]


@given(st.integers(0, 10**9), st.sampled_from(sorted(SIZE_UNITS)))
def test_a_size_reads_in_every_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number} {unit}") == number * SIZE_UNITS[unit]


@pytest.mark.parametrize("text", ["7", "7x", "", "d", "-1s", "1.5", 7, True, None, 1.5])
def test_a_duration_without_a_known_unit_is_refused(text: object) -> None:
    with pytest.raises(Bad):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "address_"),
    [
        ("127.0.0.1:5", "127.0.0.1:5"),
        (":5", "127.0.0.1:5"),
        ("5", "127.0.0.1:5"),
        (5, "127.0.0.1:5"),
        ("::1", None),
        ("[::1]", "[::1]:3221"),
        ("[::1]:0", "[::1]:0"),
        ("host", "host:3221"),
        ("off", "off"),
        ("a b", None),
        ("x:99999", None),
        ("redis://x", None),
    ],
)
def test_addresses_have_short_forms(text: object, address_: str | None) -> None:
    kind = address(3221)
    if address_ is None:
        with pytest.raises(Bad):
            kind.parse(text)
    else:
        assert kind.show(kind.parse(text)) == address_


def test_loopback_is_told_from_all_else() -> None:
    assert all(map(is_loopback, ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"]))
    assert not any(map(is_loopback, ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"]))


def test_what_show_prints_reads_back_as_the_same_configuration() -> None:
    tables = [
        {"name": "a", "match": ["a/#"], "room": "a/+", "history": {"messages": 5, "age": "1h"}},
        {"name": "ü"},
    ]
    resolved = config(
        {"class": tables[:1] and [{**tables[0], "match": ["a/#", "a"]}, tables[1]], "shards": 3}
    )
    again = resolve(tomllib.loads(show(resolved)), {}, {})
    assert again.classes == resolved.classes and again.limits == resolved.limits
    assert all(getattr(again, key.name) == getattr(resolved, key.name) for key in KEYS)


TOML_VALUES = (
    st.text(max_size=8) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(st.text(max_size=4))
)
TOML_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(
    st.dictionaries(
        TOML_NAMES, TOML_VALUES | st.dictionaries(TOML_NAMES, TOML_VALUES, max_size=3), max_size=4
    )
)
def test_toml_that_was_written_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml(table)) == table


def test_a_reload_takes_over_what_can_change_and_names_the_rest() -> None:
    limits = {"rooms_max": 5, "mailbox_bytes_max": "1MiB"}
    old = config({"log_level": "info", "shards": 1})
    file = {"log_level": "debug", "shards": 2, "limits": limits, "class": [{"name": "a"}]}
    new = resolve(file, {}, {}, shards=old.shards)
    reload = reloaded(old, new)
    assert reload.limits == {"rooms_max": 5}
    assert reload.next_start == ["shards", "limits.mailbox_bytes_max", "class"]
    in_force = reload.config
    assert (in_force.log_level, in_force.shards, in_force.classes) == ("debug", 1, ())
    assert in_force.limits["rooms_max"] == 5
    assert in_force.limits["mailbox_bytes_max"] == old.limits["mailbox_bytes_max"]
    assert reloaded(in_force, new).next_start == reload.next_start, "as long as it differs"
    assert reloaded(in_force, in_force) == (in_force, {}, [])


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_the_reference_page_marks_exactly_the_limits_that_a_reload_leaves(limit: Limit) -> None:
    (row,) = (line for line in reference().splitlines() if line.startswith(f"| `{limit.name}` |"))
    value = limit.default + 1 if limit.default < 65_535 else limit.default - 1
    taken = reloaded(config(), config({"limits": {limit.name: value}}))
    assert ("At start" in row) is (not limit.reload) is (taken.next_start == [f"limits.{limit.name}"])
    assert (limit.name in taken.limits) is limit.reload


def test_the_reference_page_is_current(repository: Path) -> None:
    page = repository / "docs" / "reference" / "config.md"
    assert page.read_text() == reference(), "make fix writes it"


def test_every_key_and_limit_says_what_it_is() -> None:
    for row in (*KEYS, *LIMITS):
        assert row.doc.endswith("."), row.name
    assert all(key.kind is FLAG or key.metavar for key in KEYS)


SECRET = "0123456789abcdef-secret"


def test_a_secret_is_shown_nowhere() -> None:
    from hubsub.config.render import plain

    resolved = config({"link": ":0"}, HUBSUB_CLUSTER_SECRET=SECRET)
    assert resolved.cluster_secret is not None and resolved.cluster_secret.reveal() == SECRET
    for text in (show(resolved), str(plain(resolved)), repr(resolved), f"{resolved.cluster_secret}"):
        assert SECRET not in text
    assert "# cluster_secret is set" in show(resolved) and plain(resolved)["cluster_secret"] == "***"


def test_a_password_within_a_url_is_not_shown() -> None:
    from hubsub.config.render import plain

    cluster = {"link": ":0", "cluster_secret": SECRET}
    resolved = resolve({**cluster, "coordinator": "etcd://me:hush@store:2379"}, {}, {})
    assert resolved.coordinator == "etcd://me:hush@store:2379"
    assert '# coordinator = "etcd://***@store:2379"' in show(resolved)
    assert plain(resolved)["coordinator"] == "etcd://***@store:2379"
    for url in ("redis://me:hush@store/1", "unix:///redis.sock?user=me&pass=hush&db=1"):
        kept = resolve({"inflight_store": url}, {}, {})
        assert kept.inflight_store == url and "hush" not in repr(kept) + show(kept) + str(plain(kept))
    assert "hush" not in repr(resolved) and "coordinator='etcd://***@store:2379'" in repr(resolved)
    without = resolve({**cluster, "coordinator": "etcd://store:2379"}, {}, {})
    assert '\ncoordinator = "etcd://store:2379"' in show(without)
    assert plain(config())["cluster_secret"] is None
    for bad in ("too:short", "not to be\nprinted, and long", 123_456_789):
        assert str(bad) not in problems({"cluster_secret": bad})


def test_links_need_a_secret_and_are_then_open_to_other_machines() -> None:
    assert "cluster_secret: is needed" in problems({"link": ":0"})
    assert config({"link": "0.0.0.0:0", "cluster_secret": SECRET}).link == "0.0.0.0:0"
    assert "is needed" not in problems({"link": ":0", "cluster_secret": "short"})


def test_limits_of_links_fit_each_other() -> None:
    for limits, named in (
        ({"link_heartbeat_ms": 251}, "link_heartbeat_ms"),
        ({"link_suspect_ms": "5s"}, "link_silence_ms"),
        ({"link_redial_ms_min": "6s"}, "link_redial_ms_max"),
        ({"leader_lease_ms": 750}, "leader_silence_ms"),
        ({"leader_silence_ms": 150}, "link_heartbeat_ms"),
    ):
        assert f"limits.{named}" in problems({"limits": limits})
    sound = config({"limits": {"link_heartbeat_ms": 250, "link_redial_ms_max": "1s"}})
    assert sound.limits["link_redial_ms_max"] == 1_000
    assert config({"limits": {"leader_lease_ms": 751}}).limits["leader_lease_ms"] == 751


@pytest.mark.parametrize(
    "strategy", ["random", "sticky", "hash:topic", "hash:publisher", "hash:header:device id"]
)
def test_a_class_says_which_member_of_a_group_gets_a_record(strategy: str) -> None:
    assert config({"class": [{"name": "a"}]}).classes[0].share_strategy == "round-robin"
    assert (
        config({"class": [{"name": "a", "share_strategy": strategy}]}).classes[0].share_strategy == strategy
    )


@pytest.mark.parametrize("strategy", ["hash", "hash:header:", "first"])
def test_a_way_to_share_that_there_is_not_is_refused(strategy: str) -> None:
    text = problems({"class": [{"name": "a", "share_strategy": strategy}]})
    assert "class a, share_strategy: no such way to share" in text and "hash:header:NAME" in text


def test_what_happens_to_mqtt_sessions_is_kept_within_its_limit() -> None:
    config = resolve({"data": "d", "limits": {"mqtt_session_entries_bytes_max": "1GiB"}}, {}, {})
    entries = next(cls for cls in config.all_classes if cls.name == "$queue")
    # A log removes whole segments, and never the one being written.
    assert entries.history is not None
    assert entries.history.bytes == 2**30 + config.limits["log_segment_bytes"]
