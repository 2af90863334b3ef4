"""Start and end of reads, and the content of a checkpoint."""

from dataclasses import replace

import pytest

from hubsub.errors import OffsetsLostError, OffsetUnknownError, OptionError, OtherLogError, PipelineError
from hubsub.pipeline.listing import Hub, Listing
from hubsub.pipeline.offsets import StreamOffset, checked, offset_of, resolve

HUB = Hub(id=3, name="chat-0", earliest=10, end=20, first_timestamp_us=100)
LISTING = Listing(log="aa", hubs={3: HUB, 4: Hub(id=4, name="chat-1", earliest=1, end=1)})


def test_a_word_stands_for_all_hubs() -> None:
    assert resolve(LISTING, None, "earliest", fail_on_data_loss=True) == {3: 10, 4: 1}
    assert resolve(LISTING, "latest", "earliest", fail_on_data_loss=True) == {3: 20, 4: 1}


def test_offsets_name_hubs_by_id_or_name_and_the_rest_has_the_default() -> None:
    assert resolve(LISTING, {"3": 12}, "latest", fail_on_data_loss=True) == {3: 12, 4: 1}
    assert resolve(LISTING, {"chat-0": -2, "chat-1": -1}, "latest", fail_on_data_loss=True) == {3: 10, 4: 1}
    with pytest.raises(OptionError, match="chat-9"):
        resolve(LISTING, {"chat-9": 1}, "latest", fail_on_data_loss=True)


def test_an_offset_that_is_gone_is_an_error_that_names_the_range() -> None:
    with pytest.raises(OffsetsLostError, match="offsets 4 to 9") as raised:
        checked(HUB, 4, True)
    assert (raised.value.hub, raised.value.first, raised.value.end) == ("chat-0", 4, 10)
    assert checked(HUB, 4, False) == 10


def test_an_offset_behind_the_end_is_an_error() -> None:
    with pytest.raises(OffsetUnknownError, match="21, it ends at 20"):
        checked(HUB, 21, True)
    assert checked(HUB, 21, False) == 20 and checked(HUB, 20, True) == 20


def test_the_node_is_asked_for_a_moment_unless_all_of_the_hub_is_later() -> None:
    asked: list[int] = []

    def at(_: Hub, moment: int) -> int:
        asked.append(moment)
        return 15

    assert [offset_of(HUB, moment, at) for moment in (50, 100, 101)] == [10, 10, 15]
    in_memory, empty = replace(HUB, first_timestamp_us=None), LISTING.hubs[4]
    assert (offset_of(in_memory, 50, at), offset_of(empty, 50, at)) == (15, 1)
    assert asked == [101, 50]


def test_a_checkpoint_keeps_all_of_an_offset() -> None:
    offset = StreamOffset(log="aa", query="q", hubs={3: 5, 10: 6}, born={10: 1})
    assert StreamOffset.decode(offset.encode()) == offset
    assert offset.encode()["hubs"] == {"3": 5, "10": 6}


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        StreamOffset.decode({"partition-0": 3})
    with pytest.raises(OtherLogError, match="aa, the servers have bb"):
        StreamOffset(log="aa", query="q", hubs={}).check_log("bb")
