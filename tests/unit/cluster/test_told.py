"""Log lines about hubs that the controller changes."""

from structlog.testing import capture_logs

from hubsub.control.cluster.leads import Step
from hubsub.control.cluster.records import HubRecord
from hubsub.control.cluster.told import MOVES_S, Told


def step(hub: int, why: str, leader: str = "b") -> Step:
    record = HubRecord(room_class="chat", index=hub, term=2, leader=leader, incarnation=1, members=(leader,))
    return Step(hub, record, record, why)


def test_moves_in_order_are_one_line_and_what_cost_something_is_told_at_once() -> None:
    now = 0.0
    told = Told(lambda: now)
    with capture_logs() as lines:
        told.note([step(1, "propose"), step(2, "propose"), step(9, "dead")])
        told.note([step(1, "gave up"), step(2, "gave up", "c"), step(3, "has records")])
        told.tell()
        assert [(line["event"], line["why"], line["first"]) for line in lines] == [
            ("hubs change", "dead", [9])
        ]
        now = MOVES_S
        told.tell()
        told.tell(is_end=True)
    (line,) = lines[1:]
    assert line["event"] == "hubs are dealt" and line["to"] == "b (1), c (1)"
    keys = ("moved", "stay_with_records", "asked_for", "taken_back")
    assert [line[key] for key in keys] == [2, 1, 2, 0]


def test_what_was_not_told_yet_is_when_the_mandate_ends() -> None:
    told = Told(lambda: 0.0)
    with capture_logs() as lines:
        told.note([step(1, "gave up")])
        told.tell()
        assert not lines
        told.tell(is_end=True)
        told.tell(is_end=True)
    assert len(lines) == 1
