"""The log lines about the advertised address at the start of the embedded coordinator."""

import asyncio

import pytest
from structlog.testing import capture_logs

from hubsub.coordination import embedded


async def said(host: str | None, port: int) -> list[str]:
    with capture_logs() as lines:
        await embedded._check_reachable(host, port)
    return [f"{line['log_level']}: {line['address']}, {line['reason']}" for line in lines]


async def test_an_address_that_is_not_reached_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded, "REACHED_S", 0.1)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await said("127.0.0.1", port) == []
    server.close()
    await server.wait_closed()
    assert await said("127.0.0.1", port) == [f"warning: 127.0.0.1:{port}, Connection refused"]
    assert await said(None, port) == await said("127.0.0.1", 0) == [], "there is nothing to look at"
