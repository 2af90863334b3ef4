"""Names as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.names import bytes_of, text_of


@given(st.binary(max_size=64) | st.text(max_size=32).map(lambda t: t.encode("utf-8", "replace")))
def test_every_name_reads_back_as_the_bytes_it_was(name: bytes) -> None:
    text = text_of(name)
    assert bytes_of(text) == name
    text.encode()


@given(st.lists(st.sampled_from([b"%", b"4", b"1", b"\xff", b"F", "é".encode(), b"\xc3"]), max_size=8))
def test_percent_signs_beside_odd_bytes_read_back_too(parts: list[bytes]) -> None:
    assert bytes_of(text_of(b"".join(parts))) == b"".join(parts)


@pytest.mark.parametrize("name", ["chat:lobby", "100%", "50%off", "日本語"])
def test_an_ordinary_name_stands_as_itself(name: str) -> None:
    assert text_of(name.encode()) == name
