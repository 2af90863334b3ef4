"""Request heads of the length limit, and one byte longer."""

from __future__ import annotations

import h11
import pytest

from hubsub.api.strict import HEAD_BYTES_MAX, StrictConnection

END = b" HTTP/1.1\r\nHost: a\r\n\r\n"


def unfinished(size: int) -> bytes:
    """A head of this many bytes that lacks its last one."""
    return b"GET /".ljust(size - len(END), b"x") + END[:-1]


def test_a_head_of_the_maximum_length_is_read_and_a_longer_one_refused() -> None:
    one = StrictConnection()
    one.receive_data(unfinished(HEAD_BYTES_MAX + 1))
    assert one.next_event() is h11.NEED_DATA
    one.receive_data(END[-1:])
    request = one.next_event()
    assert isinstance(request, h11.Request)
    assert len(request.target) == HEAD_BYTES_MAX + 1 - len(b"GET ") - len(END)

    other = StrictConnection()
    other.receive_data(unfinished(HEAD_BYTES_MAX + 2))
    with pytest.raises(h11.RemoteProtocolError) as refused:
        other.next_event()
    assert refused.value.error_status_hint == 431
