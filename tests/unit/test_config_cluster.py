"""Configuration of a cluster node: keys that fit each other, or a clear refusal."""

from __future__ import annotations

from typing import Any

import pytest

from hubsub.config import Config, resolve
from hubsub.errors import ConfigError

SECRET = {"cluster_secret": "a secret of the tests"}
LINK = {"link": "127.0.0.1:3222", **SECRET}
ETCD = "etcd://127.0.0.1:2379"


def config(**keys: Any) -> Config:
    return resolve(keys, {}, {})


@pytest.mark.parametrize(
    ("keys", "is_clustered"),
    [
        ({}, False),
        ({"zone": "east", "advertise": "hub.example"}, False),
        (LINK, True),
        (LINK | {"raft": "127.0.0.1:3224", "join": ["10.0.0.2:3224"]}, True),
        (LINK | {"raft": "127.0.0.1:0", "link": "127.0.0.1:0"}, True),
        (LINK | {"coordinator": ETCD}, True),
        (LINK | {"link": "0.0.0.0:3222", "raft": "0.0.0.0:3224", "advertise": "hub.example"}, True),
        (LINK | {"advertise": "localhost"}, True),
    ],
)
def test_keys_that_fit_each_other_are_taken(keys: dict[str, Any], is_clustered: bool) -> None:
    assert config(**keys).is_clustered == is_clustered


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (LINK | {"role": "hub", "redis": "127.0.0.1:0"}, "redis: a node of a cluster that has not the role"),
        (
            LINK | {"role": "hub", "redis_cluster": "127.0.0.1:0"},
            "redis_cluster: a node of a cluster that has",
        ),
        ({"raft": "127.0.0.1:0"}, "link: is needed, since `raft` makes this a node of a cluster"),
        ({"join": ["10.0.0.2"]}, "link: is needed, since `join` makes this a node of a cluster"),
        ({"coordinator": ETCD}, "link: is needed, since `coordinator` makes this a node of a cluster"),
        ({"link": "127.0.0.1:0"}, "cluster_secret: is needed, since `link` is set"),
        (
            LINK | {"coordinator": ETCD, "raft": "127.0.0.1:0"},
            "raft: is a listener of the embedded coordinator",
        ),
        (
            LINK | {"coordinator": ETCD, "join": ["10.0.0.2"]},
            "join: is a way to the embedded coordinator alone",
        ),
        (LINK | {"raft": "127.0.0.1:3222"}, "raft: must be another address than `link`"),
        (LINK | {"advertise": "hub.example"}, "link: other machines cannot reach it"),
        (
            LINK | {"link": "0.0.0.0:3222", "raft": "127.0.0.1:3224", "advertise": "10.0.0.1"},
            "raft: other machines cannot reach it",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_what_to_do(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**keys)
    assert told in str(caught.value) and "hint: " in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_hub_has_no_listener_for_clients_unless_it_is_an_edge_too() -> None:
    hub, both = config(**LINK, role="hub"), config(**LINK, role="edge,hub")
    assert hub.redis is None and hub.http is not None and both.redis is not None
    assert config(**LINK, role="hub", redis="off").redis is None
    assert config(role="hub").redis is not None, "a node alone is all that there is"
