"""`hubsub consumer …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say, segment, shown

app = group("Lists, shows and deletes named consumers: groups that keep their place in a topic.")

Name = Annotated[str, typer.Argument(help="Name of the group.", show_default=False)]
Topic = Annotated[str, typer.Argument(help="Its topic.", show_default=False)]


@app.command("ls")
def list_consumers(url: Url = None, as_json: Json = False) -> None:
    """Lists consumers and their lag."""
    rows = Api(url).get("/v1/consumers").rows("consumers")
    print_rows(rows, ("group", "topic", "position", "lag", "delivered", "members"), as_json)


@app.command("show")
def show_consumer(name: Name, topic: Topic, url: Url = None, as_json: Json = False) -> None:
    """Shows a consumer: its position, lag and members."""
    print_fields(Api(url).get(f"/v1/consumers/{segment(name)}/{segment(topic)}"), as_json)


@app.command("delete")
def delete_consumer(name: Name, topic: Topic, url: Url = None) -> None:
    """Deletes a consumer's position: its next member starts with new records."""
    Api(url).ask("DELETE", f"/v1/consumers/{segment(name)}/{segment(topic)}")
    say(f"deleted {shown(name)} of {shown(topic)}")
