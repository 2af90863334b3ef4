"""Text forms of names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.names import bytes_of, device_pattern, text_of


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


@pytest.mark.parametrize(
    ("template", "topic", "device"),
    [
        # As in the data plane: crates/hubsub-types/src/names/device.rs.
        ("devices/{device}/#", "devices/a/state/x", "a"),
        ("devices/{device}/#", "devices/a", "a"),
        ("devices/{device}/#", "devices/a/", "a"),
        ("devices/{device}/#", "devices//state", None),
        ("devices/{device}/#", "devices", None),
        ("devices/{device}/#", "sensors/a", None),
        ("devices/{device}", "devices/a/b", None),
        ("devices/{device}", "devices/a\n", "a\n"),
        ("devices/dev-{device}.v1/+", "devices/dev-a.v1/x", "a"),
        ("devices/dev-{device}.v1/+", "devices/dev-a-v1/x", None),
        ("dev-{device}-x", "dev-x", None),
        ("device:{device}:state", "device:a:b:state", "a:b"),
        ("device:{device}:*", "device:a:b:state/x\n", "a"),
        ("device:{device}:*", "device:::x", ":"),
        ("device:{device}:*", "device:a/b:c", None),
        ("devices/{device}/st*", "devices/a/state/x", "a"),
        ("devices/{device}/*", "devices/a", None),
        ("+/{device}", "x/a", "a"),
        ("+/{device}", "$SYS/a", None),
        ("$SYS/{device}", "$SYS/a", "a"),
    ],
)
def test_a_device_template_says_which_part_of_a_topic_is_the_device(
    template: str, topic: str, device: str | None
) -> None:
    found = re.match(device_pattern(template), topic)
    assert (found and found[1]) == device


@pytest.mark.parametrize(
    "template",
    [
        "",
        "devices/+/#",
        "{device}/{device}",
        "devices/{device}*",
        "devices/{device}/#/x",
        "a+/{device}",
        "{device}#",
    ],
)
def test_a_device_template_that_does_not_say_it_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"^has "):
        device_pattern(template)
