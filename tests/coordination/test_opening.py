"""From a URL to an open coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubsub.config import resolve
from hubsub.coordination import open_url
from hubsub.coordination.location import Location, parse_location
from hubsub.errors import ConfigError, CoordinatorUnreachableError


def test_a_url_may_name_all_there_is() -> None:
    assert parse_location("etcd://a:1,b,[::1]:3", 2379) == Location(
        "etcd", (("a", 1), ("b", 2379), ("::1", 3))
    )
    assert parse_location("zookeeper://me:p%40ss@a/other/cluster?timeout=250ms", 2181) == Location(
        "zookeeper", (("a", 2181),), "other/cluster", "me", "p@ss", 0.25
    )
    secure = parse_location("etcd://a?ca=/etc/ca.pem", 2379)
    assert secure.tls and secure.ca == "/etc/ca.pem"
    assert parse_location("etcd://a?tls=true", 2379).tls


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("etcd://", "HOST:PORT"),
        ("etcd://a:0", "HOST:PORT"),
        ("etcd://a:b", "HOST:PORT"),
        ("etcd://a:1,,b:1", "HOST:PORT"),
        ("etcd://me:hush@a?timeouts=1s", "did you mean"),
        ("etcd://me:hush@a?timeout=1", "10s"),
        ("etcd://me:hush@a?timeout=0s", "timeout=5s"),
        ("etcd://me:hush@a?tls=maybe", "true or false"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_location(url, 2379)
    assert word in str(caught.value) and "hush" not in str(caught.value)


async def test_certificates_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TLS files"):
        await open_url(f"etcd://127.0.0.1:1?ca={tmp_path}/none.pem")


async def test_an_unknown_scheme_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        await open_url("etdc://me:hush@127.0.0.1:1")
    assert "did you mean 'etcd'?" in str(caught.value) and "hush" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
async def test_a_store_that_nobody_serves_is_unreachable(scheme: str) -> None:
    with pytest.raises(CoordinatorUnreachableError):
        await open_url(f"{scheme}://127.0.0.1:1?timeout=300ms")
    with pytest.raises(CoordinatorUnreachableError):
        await open_url(f"{scheme}://no-such-host.invalid?timeout=300ms")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another vendor's installed package, whose backend has the scheme `shelf`."""
    info = tmp_path / "shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hubsub.discovery]\nshelf = shelf_backend:open_shelf\nbroken = shelf_backend:no_such\n"
    )
    (tmp_path / "shelf_backend.py").write_text(
        "from hubsub.coordination.memory import MemoryCoordinator\n"
        "async def open_shelf(url):\n"
        "    coordinator = MemoryCoordinator()\n"
        "    coordinator.url = url\n"
        "    return coordinator\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("shelf")
async def test_an_installed_package_brings_its_own_scheme() -> None:
    linked = {"link": "127.0.0.1:0", "cluster_secret": "a secret of tests"}
    config = resolve({"coordinator": "shelf://top"} | linked, {}, {})
    coordinator = await open_url(config.coordinator)
    assert coordinator.url == "shelf://top"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("shelf")
async def test_a_package_that_cannot_be_loaded_is_told_without_the_password() -> None:
    with pytest.raises(ConfigError) as caught:
        await open_url("broken://me:hush@top")
    assert "shelf_backend:no_such cannot be loaded" in str(caught.value) and "hush" not in str(caught.value)


def test_the_configuration_takes_no_scheme_that_nobody_brings() -> None:
    with pytest.raises(ConfigError):
        resolve({"coordinator": "shelf://top"}, {}, {})
