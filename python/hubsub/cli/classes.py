"""`hubsub class …`: over the REST API."""

from hubsub.cli.common import Api, Json, Url, group, print_rows

app = group("Lists room classes.")


@app.command("ls")
def list_classes(url: Url = None, as_json: Json = False) -> None:
    """Lists the classes in order of precedence; the last is the default class."""
    columns = ("name", "match", "room", "durability", "history", "on_slow", "on_gap")
    print_rows(Api(url).get("/v1/classes").rows("classes"), columns, as_json)
