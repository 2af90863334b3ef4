"""`hubsub retained …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say, say_more, segment, shown

app = group("Lists, shows and removes messages that topics keep for who subscribes later.")

Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]

COLUMNS = ("topic", "payload", "position", "timestamp_us", "expires_us")


@app.command("ls")
def list_retained(
    wanted: Annotated[str, typer.Argument(metavar="[FILTER]", help="MQTT filter of topics.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    after: Annotated[str | None, typer.Option(help="Topics behind this one.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists retained messages in order of topic."""
    rows, more = Api(url).pages("/v1/retained", "retained", limit, after, filter=wanted or None)
    print_rows(rows, COLUMNS, as_json)
    say_more(more)


@app.command("show")
def show_retained(topic: Topic, url: Url = None, as_json: Json = False) -> None:
    """Shows the retained message of a topic."""
    print_fields(Api(url).get(f"/v1/retained/{segment(topic)}"), as_json)


@app.command("rm")
def remove_retained(topic: Topic, url: Url = None) -> None:
    """Removes the retained message of a topic: later subscribers get none."""
    Api(url).ask("DELETE", f"/v1/retained/{segment(topic)}")
    say(f"removed what {shown(topic)} kept")
