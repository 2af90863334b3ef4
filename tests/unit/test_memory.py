"""The setting `memory`, the shares of the memory pools, and the report of memory use."""

from pathlib import Path

import msgspec
import pytest

from hubsub.config import LIMITS, Config, reloaded, resolve
from hubsub.config.memory import LEAST, SHARES, available_bytes
from hubsub.control.memory import DOCS, pools
from hubsub.errors import ConfigError
from hubsub.node.status import Log

from .played_node import hub_row, played_log

MIB, GIB = 1 << 20, 1 << 30


def config(memory: object, shards: int = 2, **limits: object) -> Config:
    return resolve({"memory": memory, "shards": shards, "limits": limits}, {}, {})


def test_each_pool_takes_its_share_and_never_more_than_its_default() -> None:
    small, large = config("1GiB"), config("1024GiB")
    for limit in LIMITS:
        if limit.name not in SHARES:
            continue
        percent, is_parted = SHARES[limit.name]
        shards = 2 if is_parted else 1
        assert large.limits[limit.name] == limit.default
        assert small.limits[limit.name] == min(limit.default, GIB * percent // 100 // shards)
        assert small.sources[f"limits.{limit.name}"] == "default"


def test_all_pools_together_leave_a_fifth_of_the_memory() -> None:
    for memory, shards in ((LEAST, 1), (GIB, 2), (GIB, 64)):
        limits = config(memory, shards).limits
        of = sum(limits[name] * (shards if is_parted else 1) for name, (_, is_parted) in SHARES.items())
        assert of <= memory * 80 // 100


def test_a_limit_that_somebody_set_stays_and_one_that_nobody_set_follows_its_pool() -> None:
    limits = config("256MiB", history_shard_bytes_max="2GiB").limits
    assert limits["history_shard_bytes_max"] == 2 * GIB
    assert limits["frame_bytes_max"] == limits["input_shard_bytes_max"] == 256 * MIB * 8 // 100 // 2


@pytest.mark.parametrize("memory", [LEAST - 1, "63MiB", "0%", "101%", "5.5%", "half", "-1", True, -1])
def test_what_is_no_memory_is_refused(memory: object) -> None:
    with pytest.raises(ConfigError, match=r"memory.*must"):
        config(memory)


def test_a_share_is_of_what_the_process_may_have() -> None:
    all_of_it = available_bytes()
    assert config("100%").memory == all_of_it
    assert resolve({}, {}, {}).memory == all_of_it * 50 // 100
    assert config("1%").memory == max(LEAST, all_of_it // 100)
    assert resolve({}, {}, {"HUBSUB_MEMORY": "70MB"}).memory == 70_000_000
    assert resolve({}, {"memory": "3GiB"}, {"HUBSUB_MEMORY": "70MB"}).memory == 3 * GIB


def test_a_reload_takes_other_memory_over_and_parts_it_among_the_shards_that_run() -> None:
    old = config("1GiB", shards=1)
    new = resolve({"memory": "512MiB", "shards": 4}, {}, {}, shards=old.shards)
    reload = reloaded(old, new)
    assert reload.config.memory == 512 * MIB
    assert reload.limits["output_shard_bytes_max"] == 512 * MIB * 12 // 100
    logs = ["limits.log_pending_bytes_max", "limits.log_unwritten_bytes_max"]
    assert reload.next_start == ["shards", "limits.mailbox_bytes_max", *logs]


LIES_IN = {
    "frame_bytes_max": "input_shard_bytes_max",
    "mqtt_connect_bytes_max": "input_shard_bytes_max",
    "phoenix_message_bytes_max": "input_shard_bytes_max",
    "transaction_bytes_max": "input_shard_bytes_max",
    "http_body_bytes_max": "http_bodies_bytes_max",
    "subscription_bytes_per_client_max": "subscription_bytes_shard_max",
    "output_bytes_max": "output_shard_bytes_max",
    "reply_bytes_max": "reply_shard_bytes_max",
    "topic_bytes_max": "room_names_bytes_max",
}
"""The limit of one message, client or name, and the limit of the sum that contains it."""


@pytest.mark.parametrize("shards", [1, 2, 64])
@pytest.mark.parametrize("memory", [LEAST, LEAST + 1])
def test_with_the_least_memory_no_limit_is_above_the_sum_that_it_lies_in(memory: int, shards: int) -> None:
    limits = config(memory, shards).limits
    lows = {limit.name: limit.low for limit in LIMITS}
    for small, large in LIES_IN.items():
        sum_of_shard = -(-limits[large] // shards) if large == "room_names_bytes_max" else limits[large]
        assert lows[small] <= limits[small] <= sum_of_shard, small


@pytest.mark.parametrize("small", LIES_IN)
def test_a_set_limit_at_the_sum_is_taken_and_one_above_is_refused_with_a_hint(small: str) -> None:
    large = LIES_IN[small]
    most = config(LEAST, 64).limits[large]
    if large == "room_names_bytes_max":
        most = -(-most // 64)
    assert config(LEAST, 64, **{small: most}).limits[small] == most
    with pytest.raises(ConfigError) as caught:
        config(LEAST, 64, **{small: most + 1})
    text = str(caught.value)
    assert f"limits.{small}: must not be above limits.{large} ({most}" in text
    assert f"hint: lower it, or raise limits.{large}, which is {SHARES[large][0]}% of memory" in text
    raised = {small: most + 1, large: 64 * (most + 1)}
    assert config(LEAST, 64, **raised).limits[small] == most + 1


def test_the_longest_mqtt_packet_is_allowed_with_little_memory_since_it_is_not_buffered_whole() -> None:
    limits = config("512MiB", 8, mqtt_packet_bytes_max=268_435_460).limits
    assert limits["mqtt_packet_bytes_max"] == 268_435_460 > limits["input_shard_bytes_max"]


def machine(root: Path, groups: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / file.name.replace("_max", ".max").replace("_limit_in", ".limit_in")).write_text(text)
    return root


def test_the_least_limit_of_the_groups_around_a_process_holds(tmp_path: Path) -> None:
    both = machine(tmp_path / "a", "0::/pod/main\n", pod__main__memory_max="max\n", pod__memory_max="12345\n")
    assert available_bytes(both) == 12345
    own = machine(tmp_path / "b", "0::/\n", memory_max="777\n")
    assert available_bytes(own) == 777
    v1 = machine(
        tmp_path / "c", "4:cpu,memory:/box\n3:pids:/box\n0::/\n", memory__box__memory_limit_in_bytes="4096\n"
    )
    assert available_bytes(v1) == 4096
    free = machine(tmp_path / "d", "0::/pod\n", pod__memory_max="max\n")
    assert available_bytes(free) == available_bytes(tmp_path / "nothing") > GIB // 4


def test_pools_add_up_to_the_resident_size() -> None:
    names = ("connections", "topics", "rooms", "patterns", "history", "retained", "waiting", "input")
    shard = {f"{name}_bytes": 10 for name in (*names, "mailbox", "pool", "mqtt_session_queued", "mqtt_large")}
    metrics = {"shards": [shard, shard], "node": {"memory_used_bytes": 1_000}}
    hubs = [hub_row(1, index_bytes=7), hub_row(2, index_bytes=8)]
    log = msgspec.convert(played_log(*hubs) | {"figures": {"pending_bytes": 5}}, Log)
    of = pools(metrics, log, 500, 1_700)
    assert of.keys() == DOCS.keys()
    assert (of["history"], of["sessions"], of["log"], of["other"]) == (20, 40, 20, 1_000 - 240 - 20)
    assert (of["program"], of["rest"], sum(of.values())) == (500, 200, 1_700)
    assert pools(metrics, None, 500, 1_400)["rest"] == 0
