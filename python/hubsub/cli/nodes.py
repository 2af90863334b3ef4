"""`hubsub node …`: over the REST API."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import Annotated, Any

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, segment
from hubsub.errors import NoClusterError

app = group("Lists and shows nodes.")


@app.command("ls")
def list_nodes(url: Url = None, as_json: Json = False) -> None:
    """Lists the nodes. For nodes that do not answer, shows what the asked node knows."""
    api = Api(url)
    rows = api.get("/v1/nodes").rows("nodes")
    print_rows(
        [*rows, *silent(api, {str(row["name"]) for row in rows})],
        ("name", "state", "redis", "http", "role", "zone", "hubs_led", "shards", "version", "uptime_s"),
        as_json,
    )


def silent(api: Api, answered: Set[str]) -> Iterator[dict[str, Any]]:
    """Nodes of the cluster that have not answered, with their registered data, or the name alone of a mere voter."""
    try:
        seen = api.get("/v1/cluster")
    except NoClusterError:
        return
    known = {node["name"]: node for node in seen["nodes"]}
    counted = seen["voters"] or {"nodes": []}
    led = Counter(hub["leader"] for hub in seen["hubs"])
    for name in sorted((known.keys() | set(counted["nodes"])) - answered):
        node = known.get(name)
        if node is None:
            yield {"name": name, "state": "not registered", "hubs_led": led[name]}
        else:
            yield {
                "name": name,
                "state": node["state"],
                **{listener: node["addresses"].get(listener) for listener in ("redis", "http")},
                "role": node["roles"],
                **{key: node[key] for key in ("zone", "hubs_led", "version")},
            }


@app.command("show")
def show_node(
    node: Annotated[str | None, typer.Argument(help="Its name; default: the one asked.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Shows a node, by default the one that is asked."""
    api = Api(url)
    if node is None:
        _print(api.get("/v1/nodes").rows("nodes", least=1)[0], as_json)
    else:
        _print(api.get(f"/v1/nodes/{segment(node)}"), as_json)


def _print(row: Mapping[str, Any], as_json: bool) -> None:
    print_fields(row if as_json else {**row, "peers": [_peer(peer) for peer in row["peers"]]}, as_json)


def _peer(peer: Mapping[str, Any]) -> str:
    states = Counter(link["state"] for link in peer["links"])
    return f"{peer['node']}: " + ", ".join(f"{count} {state}" for state, count in states.items())
