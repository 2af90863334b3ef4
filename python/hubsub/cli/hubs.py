"""`hubsub hub …`: over the REST API."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say, say_more, segment

app = group("Lists and shows hubs that have a log.")

COLUMNS = ("name state rooms earliest latest committed bytes segments durability shard leader id").split()


@app.command("ls")
def list_hubs(
    room_class: Annotated[str | None, typer.Option("--class", help="Of this class only.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    after: Annotated[int | None, typer.Option(help="Hubs behind this id.", min=0)] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists hubs by id. Problems are printed on stderr."""
    rows, more = Api(url).pages("/v1/hubs", "hubs", limit, after, **{"class": room_class})
    print_rows(rows, COLUMNS, as_json, keep="state")
    for row in rows:
        if row["state"] != "open":
            say(f"{row['name']} is {row['state']}: {row['reason']}")
    say_more(more)


@app.command("show")
def show_hub(
    hub: Annotated[str, typer.Argument(help="Its name (CLASS-INDEX) or id.", show_default=False)],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Shows a hub, and the queries of data pipelines that read it."""
    api = Api(url)
    fields: dict[str, Any] = api.get(f"/v1/hubs/{segment(hub)}")
    readers = _readers(api, fields["id"])
    if as_json:
        fields["queries"] = readers
    else:
        for row in readers:
            fields[f"query {row['query']}"] = f"read to {row['offset']}, {row['lag']} behind"
        fields = {_head(key): _time(value) if _is_time(key) else value for key, value in fields.items()}
    print_fields(fields, as_json)


def _readers(api: Api, hub: int) -> list[dict[str, Any]]:
    """The queries that read a hub, with their offsets in it."""
    queries = api.get("/v1/queries").rows("queries")
    return [
        {"query": query["query"], "offset": row["offset"], "lag": row["lag"]}
        for query in queries
        for row in query.rows("hubs")
        if row["hub"] == hub
    ]


def _is_time(key: str) -> bool:
    return key.endswith("_timestamp_us")


def _head(key: str) -> str:
    return key.removesuffix("_timestamp_us") if _is_time(key) else key


def _time(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")
