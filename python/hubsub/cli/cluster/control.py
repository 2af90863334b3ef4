"""Control socket of a running `hubsub cluster up` for other terminals: a Unix socket that only its user may use.

A connection carries one request and one reply, each a line of JSON: `{"do": "ps"}`, `{"do": "kill", "name":
…, "signal": 9}`, `{"do": "start", "name": …}`; the reply is `{"data": …, "started_in": …, "nodes": […]}` or
`{"error": [what, value, hint]}`. The socket is `control` in a directory `hubsub-cluster-…` of the system's
temporary directory, which only its user can access.
"""

import asyncio
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from hubsub.cli.cluster.supervisor import START_S, STOP_S, Supervisor
from hubsub.errors import ClientError, HubSubError, NotConnectedError

PREFIX = "hubsub-cluster-"
SOCKET = "control"
REQUEST_BYTES_MAX = 4_096
ANSWER_S = max(START_S, STOP_S) + 10.0
PS_S = 5.0
"""Time limit for `ps` in seconds, which a running supervisor answers at once."""


class Control:
    """The control socket of one supervisor.

    Args:
        supervisor: Carries out the requests.
        directory: Directory of the socket.
        data: Data directory of the nodes, by which clients find the right cluster.
    """

    def __init__(self, supervisor: Supervisor, directory: Path, data: Path) -> None:
        self._supervisor = supervisor
        self._path = directory / SOCKET
        self._data = data
        self._started_in = Path.cwd()

    async def __aenter__(self) -> "Control":
        self._server = await asyncio.start_unix_server(self._on_ask, self._path, limit=REQUEST_BYTES_MAX)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._path.unlink(missing_ok=True)

    async def _on_ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                line = await reader.readline()
            except ValueError:
                line = b""  # The line is too long.
            answer = await self._answer(line)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except OSError:
            pass  # The client has disconnected.
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            match json.loads(line):
                case {"do": "ps"}:
                    rows = self._supervisor.rows()
                case {"do": "kill", "name": str(name), "signal": int(number)}:
                    rows = [await self._supervisor.kill(name, number)]
                case {"do": "start", "name": str(name)}:
                    rows = [await self._supervisor.start(name)]
                case _:
                    return {"error": ["no such request", None, None]}
        except HubSubError as error:
            return {"error": [error.what, _text(error.value), error.hint]}
        except ValueError:
            return {"error": ["the request is no line of JSON", None, None]}
        except OSError as error:
            return {"error": [f"the signal cannot be sent ({error.strerror})", None, None]}
        return {"data": str(self._data), "started_in": str(self._started_in), "nodes": rows}


def ask(data: Path | None, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Sends a request to the cluster of a data directory, or of the working directory.

    The cluster of the working directory is the one that was started there or has its data there. `ps` also
    falls back to the only running cluster; requests that change a cluster never do.

    Raises:
        NotConnectedError: none runs.
        ClientError: several run and none was named, or the request was refused.
    """
    path = _find(data, anywhere=request["do"] == "ps")
    answer = _ask(path, request)
    if answer is None:
        raise NotConnectedError("the cluster has just ended", str(path.parent))
    if "error" in answer:
        raise ClientError(*answer["error"])
    rows: list[dict[str, Any]] = answer["nodes"]
    return rows


def _find(data: Path | None, anywhere: bool) -> Path:
    """The socket of the selected cluster; `anywhere` without a data directory: also of the only running one."""
    running: dict[Path, dict[str, Any]] = {}
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{SOCKET}")):
        try:
            answer = _ask(path, {"do": "ps"}, PS_S)
        except ClientError:
            continue  # It is paused or hangs, so its data directory is unknown.
        if answer is not None:
            running[path] = answer
    hint = "`hubsub cluster up` starts one"
    if data is not None:
        for path, answer in running.items():
            if Path(answer["data"]) == data.resolve():
                return path
        raise NotConnectedError("no cluster runs on this directory", str(data), hint)
    if not running:
        raise NotConnectedError("no cluster runs here", None, hint)
    here = str(Path.cwd())
    meant = [path for path, answer in running.items() if here in (answer.get("started_in"), answer["data"])]
    if not meant and anywhere:
        meant = list(running)
    if not meant:
        others = ", ".join(f"--data {answer['data']}" for answer in running.values())
        raise NotConnectedError(
            "no cluster was started in this directory", here, f"elsewhere one was: {others}"
        )
    if len(meant) > 1:
        several = ", ".join(running[path]["data"] for path in meant)
        raise ClientError("several clusters run here", several, "--data says which one")
    return meant[0]


def _ask(path: Path, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any] | None:
    """The reply; None if no process listens any more, or it belongs to another user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        try:
            if path.stat().st_uid != os.getuid():
                return None
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        except TimeoutError:
            raise ClientError("the cluster does not answer", str(path.parent)) from None
        except (OSError, ValueError):
            return None
    return answer


def _text(value: object) -> str | None:
    return None if value is None else str(value)
