"""`hubsub query …`: over the REST API."""

from typing import Annotated, Any

import typer

from hubsub.cli.common import Answer, Api, Json, Url, group, print_fields, print_rows, say, segment, shown

app = group("Lists queries of data pipelines; gives up a batch that is blocked.")

COLUMNS = ("query batch lag rows_per_second ended silence_s blocked_batch blocked_rows blocked_code").split()

NOTHING_READ = dict.fromkeys(("batch", "rows_per_second", "ended", "silence_s", "lag")) | {"hubs": []}
"""Fields of a query that only writes."""


@app.command("ls")
def list_queries(url: Url = None, as_json: Json = False) -> None:
    """Lists queries that reported progress in the last hour, and those with a blocked batch. Reasons go to stderr."""
    answer = Api(url).get("/v1/queries")
    blocked = {batch["query"]: batch for batch in answer.rows("blocked")}
    rows: dict[str, dict[str, Any]] = {row["query"]: {**row} for row in answer.rows("queries")}
    for query in blocked:
        rows.setdefault(query, {"query": query} | NOTHING_READ)
    for query, row in rows.items():
        batch = blocked.get(query)
        row["blocked"] = batch
        if batch is not None and not as_json:
            row |= {f"blocked_{field}": batch[field] for field in ("batch", "rows", "code")}
    print_rows(rows.values(), COLUMNS, as_json, keep="blocked_code")
    for batch in blocked.values():
        say(_why(batch))


@app.command("give-up")
def give_up(
    query: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    batch: Annotated[int, typer.Argument(help="The batch that is blocked.", min=0, show_default=False)],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Gives up the rest of a blocked batch: its other rows will not be published, and the query continues."""
    path = f"/v1/queries/{segment(query)}/batches/{batch}"
    print_fields(Api(url).ask("DELETE", path), as_json)


def _why(batch: Answer) -> str:
    wait = batch["next_try_s"]
    next_try = "not tried again by itself" if wait is None else f"tried again in {wait:.0f} s"
    hint = "" if batch["hint"] is None else f"\nhint: {shown(batch['hint'])}"
    what = f"batch {batch['batch']} of {shown(batch['query'])} is blocked for {batch['blocked_s']:.0f} s"
    return f"{what}, {next_try}: {shown(batch['reason'])}{hint}"
