"""A running node, and the others of its cluster: whether they serve, reach each other, and have the same version."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from hubsub.cli.common import Api, segment
from hubsub.cli.doctor.clock import PeerClock, peer_clocks
from hubsub.cli.doctor.finding import Finding
from hubsub.cli.doctor.listeners import unreachable
from hubsub.config import LISTENERS, is_loopback, split_address

AT_ONCE = 32
"""Addresses that are tried at once; each takes at most `listeners.REACH_S`."""


def node(url: str, is_named: bool) -> Iterator[Finding]:
    """Checks a node and its cluster; yields nothing if no node runs there and none was named."""
    from hubsub.errors import ClientError, HubSubError, LogFailedError

    try:
        api = Api(url)
        ready = api.get("/readyz")
        state, reasons = ready["log"], ready["reasons"]
    except LogFailedError as error:
        yield Finding("node", "bad", error.message, error.hint or "")
        return
    except ClientError as error:  # No server answers there, or it is not HubSub.
        if is_named:
            yield Finding("node", "bad", error.message, error.hint or "")
        return
    except HubSubError as error:
        yield Finding("node", "note", error.message, error.hint or "")
        return
    hint = "; ".join(map(str, reasons))
    yield Finding("node", "bad" if reasons else "ok", f"{api.url} serves, its log: {state}", hint)
    try:
        rows = api.get("/v1/nodes").rows("nodes")
    except HubSubError as error:
        yield Finding("nodes", "bad", error.message, error.hint or "")
    else:
        yield from cluster(rows, urlsplit(api.url).hostname or "")
        yield from whole(api)
        if len(rows) > 1:
            yield from (seen_from(api, str(row["name"])) for row in rows)


def cluster(rows: Sequence[Mapping[str, Any]], asked: str) -> Iterator[Finding]:
    """Checks each node of a cluster from this machine.

    Args:
        rows: As returned by `GET /v1/nodes`; clocks are compared by the first node's measurements.
        asked: The host that was asked for them.
    """
    told = {str(row.get("name")): _addresses(row) for row in rows}
    pairs = [(name, listener) for name, has in told.items() for listener in has]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        why = dict(zip(pairs, pool.map(lambda pair: _try(told[pair[0]][pair[1]]), pairs), strict=True))
    is_far = len(rows) > 1 and not is_loopback(f"{asked}:0")
    for row in rows:
        name = str(row.get("name"))
        yield _one(row, told[name], {key[1]: value for key, value in why.items() if key[0] == name}, is_far)
    yield from _same(rows, "version", "fine while an upgrade runs; then the same release everywhere")
    yield from _same(rows, "build_profile", "a build for debugging slows its rooms: install the release's")
    yield from peer_clocks(
        PeerClock(str(peer["node"]), peer["clock_offset_us"] / 1e3, peer["clock_error_us"] / 1e3)
        for row in rows[:1]
        for peer in row.get("peers", ())
        # For a node that is gone, the offset is outdated or missing.
        if peer["clock_offset_us"] is not None and any(link["state"] == "up" for link in peer["links"])
    )


def whole(api: Api) -> Iterator[Finding]:
    """Problems of the cluster that the asked node reports; nothing for a single node."""
    from hubsub.errors import NoClusterError

    try:
        seen = api.get("/v1/cluster")
    except NoClusterError:
        return
    for text in seen["wrong"]:
        yield Finding(
            "cluster", "bad", text, f"as {seen['node']} sees it; docs/cluster.md says what follows from it"
        )
    if not seen["wrong"]:
        names = ", ".join(node["name"] for node in seen["nodes"])
        yield Finding("cluster", "ok", f"controller {seen['controller']}, nodes {names}")


def seen_from(api: Api, name: str) -> Finding:
    """Checks how one node reaches the others: their listeners and its links."""
    from hubsub.errors import HubSubError

    check = f"seen from {name}"
    try:
        links = api.get(f"/v1/nodes/{segment(name)}")["peers"]
        tried = api.get("/v1/cluster/reached", node=name)["addresses"]
    except HubSubError as error:
        return Finding(check, "bad", error.message, error.hint or "its log says more")
    wrong = [
        f"{row['listener']} {row['address']} of {row['node']}: {row['problem']}"
        for row in tried
        if row["problem"] is not None
    ]
    wrong += [
        f"link to {peer['node']}: {link['state']}" + (f", {link['reason']}" if link["reason"] else "")
        for peer in links
        for link in peer["links"]
        if link["state"] != "up"
    ]
    if wrong:
        hint = (
            "a name that this node resolves otherwise, a firewall between the two, or a network that is cut"
        )
        return Finding(check, "bad", "; ".join(wrong), hint)
    return Finding(check, "ok", f"{len(tried)} addresses and all links: {_names(tried)}")


def _names(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(str(row["node"]) for row in rows))


def _one(
    row: Mapping[str, Any], told: Mapping[str, str], why: Mapping[str, str | None], is_far: bool
) -> Finding:
    name = f"node {row.get('name')}"
    wrong = [
        f"{listener} {told[listener]}: {reason}" for listener, reason in why.items() if reason is not None
    ]
    if wrong:
        hint = "the host that it advertises, its firewall, or how its ports are published; clients are sent there"
        return Finding(name, "bad", "; ".join(wrong), hint)
    if row.get("running") is False:
        return Finding(name, "bad", "a shard of it has failed", "its log says why; restart it")
    inner = [address for address in told.values() if is_loopback(address)]
    if inner and is_far:
        hint = "only its own machine reaches that: give it --advertise HOST"
        return Finding(name, "bad", f"is told as {', '.join(inner)}", hint)
    reached = ", ".join(f"{listener} {address}" for listener, address in told.items()) or "no listener"
    return Finding(name, "ok", f"{row.get('version')}, reached: {reached}")


def _same(rows: Sequence[Mapping[str, Any]], field: str, hint: str) -> Iterator[Finding]:
    """A finding if nodes differ in a field."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_value[str(row.get(field))].append(str(row.get("name")))
    if len(by_value) > 1:
        found = "; ".join(f"{value}: {', '.join(names)}" for value, names in sorted(by_value.items()))
        yield Finding(f"nodes' {field.replace('_', ' ')}", "note", found, hint)


def _addresses(row: Mapping[str, Any]) -> dict[str, str]:
    """Listener to its advertised address, for the listeners that a node has."""
    return {name: value for name in LISTENERS if isinstance(value := row.get(name), str)}


def _try(address: str) -> str | None:
    try:
        host, port = split_address(address)
    except ValueError:
        return "no address"
    return unreachable(host, port)
