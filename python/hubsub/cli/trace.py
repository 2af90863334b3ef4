"""`hubsub trace`: follows the next records of a topic over the REST API."""

from typing import Annotated, Any

import typer

from hubsub.cli.common import HTTP_TIMEOUT_S, Api, Json, Url, new_app, print_json, print_rows, say, shown
from hubsub.errors import OptionError

app = new_app("Follows the next records of a topic.")

TEXTS = {
    "received": "received from its publisher",
    "waits": "waits to be sent or committed",
    "sent_to_shard": "sent to its hub",
    "sent_to_leader": "sent to its leader",
    "from_shard": "arrived at its hub",
    "from_node": "arrived at its leader",
    "logged": "logged at offset {count}",
    "synced": "synced to disk",
    "committed": "committed; subscribers in all: {count}",
    "sent_to_node": "sent to a node with subscribers",
    "from_leader": "arrived from its leader",
    "delivered": "delivered; subscriptions: {count}",
    "answered": "position sent back",
    "acknowledged": "acknowledged to its publisher",
}


@app.command()
def trace(
    topic: Annotated[str, typer.Argument(help="The topic, without wildcards.", show_default=False)],
    records: Annotated[int, typer.Option(help="Ends after this number of records.", min=1, max=100)] = 10,
    wait: Annotated[float, typer.Option(help="Ends after this number of seconds.", min=0.001, max=60)] = 10.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Waits for the next records of a topic, and prints each step of them: when and where it happened.

    Steps on several nodes have the times of several clocks.
    """
    if not topic:
        raise OptionError("a topic has at least one byte")
    api = Api(url, HTTP_TIMEOUT_S + wait)
    answer = api.get("/v1/trace", topic=topic, records=records, wait_ms=max(1, round(wait * 1_000)))
    found = answer.rows("records")
    if answer.get("sample", 1) > 1:
        say(f"the topic is busy: about one record in {answer['sample']} was followed")
    for index, record in enumerate(found):
        if as_json:
            print_json(record)
            continue
        print(f"{'' if index == 0 else chr(10)}{shown(topic)} {record['position']}")
        steps = record.rows("steps", 1)
        print_rows([_row(step, steps[0]["at_us"]) for step in steps], ("us", "node", "shard", "step"), False)
    if not found:
        say(f"no record came in {wait:g} s; one that nobody receives and no history stores is not followed")


def _row(step: dict[str, Any], first_us: int) -> dict[str, Any]:
    """A line of the table: the time since the first step, the place, and what happened."""
    text = TEXTS.get(step["kind"], step["kind"]).format(count=step.get("count"))
    if (node := step.get("peer_node")) is not None:
        text += f": {node}"
    elif (shard := step.get("peer_shard")) is not None:
        text += f": shard {shard}"
    return {"us": step["at_us"] - first_us, "node": step["node"], "shard": step["shard"], "step": text}
