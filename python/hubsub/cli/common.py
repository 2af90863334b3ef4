"""Shared by the commands: the app, output as table or JSON, requests to a node over HTTP."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from hubsub.errors import BY_CODE, ClientError, HubSubError, NotConnectedError, without_secrets

HTTP_TIMEOUT_S = 10.0

Url = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="HUBSUB_URL", help="The node's HTTP address. Default: `http` of the configuration."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Prints JSON, one object a line.")]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="As of `hubsub serve`: where the node keeps its log."),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        envvar="HUBSUB_SERVER",
        help="redis://HOST:PORT. Default: `redis` of the configuration.",
    ),
]


def new_app(doc: str) -> typer.Typer:
    return typer.Typer(help=doc, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False)


def group(doc: str) -> typer.Typer:
    """A Typer with subcommands, even if it has only one."""
    app = typer.Typer(help=doc, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(lambda: None)
    return app


def say(text: str) -> None:
    """Prints a message for people, on stderr."""
    print(text, file=sys.stderr)


def say_more(after: object) -> None:
    """Notes on stderr that a list is not at its end; `after` is where its next page begins, or None."""
    if after is not None:
        say(f"more behind {shown(after)}: --after, or a larger --limit")


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], as_json: bool, keep: str | None = None
) -> None:
    """Prints rows as JSON lines or as a table.

    Args:
        rows: The rows to print.
        columns: Fields to show, the most useful first.
        as_json: One object per line, with all its fields.
        keep: If given, a terminal gets only the columns that fit, always including this one; else all, and
            long texts are folded.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [[shown(row.get(column)) for column in columns] for row in rows]
    numeric = [
        bool(cells) and all(row[i].replace(".", "").isdigit() for row in cells) for i in range(len(columns))
    ]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    if not sys.stdout.isatty():
        # A pipe gets every column in full.
        for line in [columns, *cells]:
            padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True))
            print("  ".join(padded).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown_columns: Sequence[int] = range(len(columns))
    if keep is not None:
        shown_columns = fitting(widths, console.width, columns.index(keep))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown_columns:
        table.add_column(
            columns[i],
            justify="right" if numeric[i] else "left",
            no_wrap=numeric[i] or i == 0,
            overflow="fold",
        )
    for line in cells:
        table.add_row(*(Text(line[i]) for i in shown_columns))
    console.print(table)
    if len(shown_columns) < len(columns):
        left_out = ", ".join(column for i, column in enumerate(columns) if i not in shown_columns)
        say(f"too narrow for {left_out}; --json has all")


def fitting(widths: Sequence[int], width: int, keep: int = 0, between: int = 2) -> Sequence[int]:
    """The columns that fit into a terminal: the first ones, and always column `keep`.

    Args:
        widths: Width of each column, the most useful first.
        width: Width of the terminal.
        keep: Index of the column that stays, default 0.
        between: Blanks between two columns, default 2.

    Returns:
        Indexes of the chosen columns, ascending.
    """
    free = width - widths[keep]
    chosen = [keep]
    for i, needed in enumerate(widths):
        if i == keep:
            continue
        free -= needed + between
        if free < 0:
            break
        chosen.append(i)
    return sorted(chosen)


def print_fields(value: Mapping[str, Any], as_json: bool) -> None:
    """Prints an object as JSON or as `name  value` lines; a nested field is shown as `outer.inner`."""
    if as_json:
        print_json(value)
        return
    fields = dict(_fields(value))
    width = max(map(len, fields), default=0)
    for key, field in fields.items():
        print(f"{key:<{width}}  {field}")


def _fields(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, field in value.items():
        name = f"{before}{shown(key)}"
        if isinstance(field, dict):
            yield from _fields(field, f"{name}.") if field else [(name, shown(None))]
        else:
            yield name, shown(field)


def shown(value: object) -> str:
    """A value as text for people; control characters are escaped."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(value))


def segment(name: str) -> str:
    """A name, in the form of `hubsub.names`, as one segment of a path."""
    from hubsub.names import bytes_of

    return quote(bytes_of(name), safe="")


def redis_url(server: str | None) -> str:
    if server:
        return server
    from hubsub.config import load

    address = load().redis
    if address is None:
        raise ClientError("the configuration has no Redis listener", None, "give --server redis://HOST:PORT")
    return f"redis://{address}"


class Answer(dict[str, Any]):
    """An object in a node's response. Access to a missing field raises an error: then another server answered.

    Args:
        pairs: Its fields.
        url: URL of the node.
    """

    def __init__(self, pairs: Iterable[tuple[str, Any]], url: str) -> None:
        super().__init__(pairs)
        self._url = url

    def __missing__(self, field: str) -> Any:
        raise _stranger(self._url, f"has no {field!r}")

    def rows(self, field: str, least: int = 0) -> list["Answer"]:
        """A field that is a list of at least `least` objects."""
        value = self[field]
        if not isinstance(value, list) or not all(isinstance(row, Answer) for row in value):
            raise _stranger(self._url, f"has a {field!r} that is no list of objects")
        if len(value) < least:
            raise _stranger(self._url, f"has {len(value)} {field}")
        return value


class Api:
    """Blocking client of a node's REST API.

    Args:
        url: The node's HTTP address; None: `http` of the configuration.
        timeout_s: Most seconds to wait for a response.
    """

    def __init__(self, url: str | None, timeout_s: float = HTTP_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        if not url:
            from hubsub.config import load

            address = load().http
            if address is None:
                raise ClientError(
                    "the configuration has no HTTP listener", None, "give --url http://HOST:PORT"
                )
            url = f"http://{address}"
        whole = url if "://" in url else f"http://{url}"
        self.url = without_secrets(whole)
        """For display, without secrets."""
        try:
            parts = urlsplit(whole)
            host, port = parts.hostname, parts.port or 3220
        except ValueError:
            host, port = None, 0
        if host is None or parts.scheme != "http":
            raise ClientError(
                "this is no HTTP address", without_secrets(url), "such as http://127.0.0.1:3220"
            )
        self._host, self._port = host, port

    def get(self, path: str, **query: object) -> Answer:
        return self.ask("GET", path, **query)

    def pages(
        self, path: str, field: str, limit: int, after: object, **query: object
    ) -> tuple[list[Answer], Any]:
        """Reads pages until there are enough rows.

        Args:
            path: Path of the list.
            field: Field of a page that has the rows.
            limit: Most rows, from 1.
            after: Where to begin; None: at the first row.
            query: Further query parameters; those that are None are left out.

        Returns:
            The rows, and where the next page begins; None at the end of the list.
        """
        rows: list[Answer] = []
        while len(rows) < limit:
            page = self.get(path, after=after, limit=limit - len(rows), **query)
            rows += page.rows(field)
            after = page["next"]
            if after is None:
                break
        return rows, after

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Answer:
        """Sends a request and returns the JSON of the response; empty if it has no body.

        Args:
            method: HTTP method.
            path: Path of the request.
            body: Sent as JSON; None sends no body.
            query: Query parameters; those that are None are left out.

        Raises:
            HubSubError: the error with the code of the response.
            ClientError: the server is not a node.
            NotConnectedError: no node answers at the address.
        """
        from http.client import HTTPConnection, HTTPException

        given = {k: str(v) for k, v in query.items() if v is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            if body is None:
                connection.request(method, target)
            else:
                headers = {"content-type": "application/json"}
                connection.request(method, target, json.dumps(body), headers)
            response = connection.getresponse()
            received = response.read()
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: the host name is invalid.
            hint = "`hubsub serve` starts a node; --url names another one"
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise NotConnectedError(f"no node answers ({reason})", self.url, hint) from None
        finally:
            connection.close()
        try:
            value = (
                json.loads(received, object_pairs_hook=lambda pairs: Answer(pairs, self.url))
                if received
                else None
            )
        except (ValueError, RecursionError):
            raise _stranger(self.url, "is no JSON") from None
        if response.status >= 400:
            raise _error(value, response.status, self.url)
        if away := response.headers.get("hubsub-unreachable"):
            say(f"without what {away} would say: no answer from there")
        if value is None:
            return Answer((), self.url)
        if not isinstance(value, Answer):
            raise _stranger(self.url, "is no object")
        return value


def _stranger(url: str, why: str) -> ClientError:
    hint = "--url names a node's HTTP address, which is not its Redis address"
    return ClientError(f"the answer is not from HubSub, it {why}", url, hint)


def _error(value: Any, status: int, url: str) -> HubSubError:
    fields = value if isinstance(value, dict) else {}
    code, message, hint = fields.get("code"), fields.get("message"), fields.get("hint")
    if not isinstance(code, str) or not isinstance(message, str):
        return _stranger(url, f"has status {status} and no code and message")
    cls = BY_CODE.get(code, ClientError)
    error = HubSubError.__new__(cls)
    HubSubError.__init__(error, message, None, _HINTS.get(code, hint))
    return error


_HINTS = {
    "no_such_room": "`hubsub room ls` lists them; a first subscriber makes one, or a first record where its class "
    "keeps a history, or `hubsub room create`",
    "no_such_hub": "`hubsub hub ls` lists those with a log; others are in memory only",
    "no_such_client": "`hubsub client ls` lists them",
    "no_such_node": "`hubsub node ls` lists them",
    "no_such_device": "`hubsub device ls` lists those that have said something",
    "batch_not_blocked": "`hubsub query ls` lists those that are",
}
"""Hints that replace the node's own, which refer to the REST API."""
