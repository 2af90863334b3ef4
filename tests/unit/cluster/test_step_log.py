"""Log lines about hubs that the controller changes."""

from structlog.testing import capture_logs

from hubsub.control.cluster.failover import Step
from hubsub.control.cluster.records import HubRecord
from hubsub.control.cluster.step_log import MOVES_S, StepLog


def step(hub: int, why: str, leader: str = "b") -> Step:
    record = HubRecord(room_class="chat", index=hub, term=2, leader=leader, incarnation=1, members=(leader,))
    return Step(hub, record, record, why)


def test_moves_in_order_are_one_line_and_what_cost_something_is_told_at_once() -> None:
    now = 0.0
    told = StepLog(lambda: now)
    with capture_logs() as lines:
        told.add([step(1, "propose"), step(2, "propose"), step(9, "dead")])
        told.add([step(1, "gave up"), step(2, "gave up", "c"), step(3, "has records")])
        told.flush()
        assert [(line["event"], line["why"], line["first"]) for line in lines] == [
            ("hubs change", "dead", [9])
        ]
        now = MOVES_S
        told.flush()
        told.flush(is_end=True)
    (line,) = lines[1:]
    assert line["event"] == "hubs are dealt" and line["to"] == "b (1), c (1)"
    keys = ("moved", "stay_with_records", "asked_for", "taken_back")
    assert [line[key] for key in keys] == [2, 1, 2, 0]


def test_what_was_not_told_yet_is_when_the_mandate_ends() -> None:
    told = StepLog(lambda: 0.0)
    with capture_logs() as lines:
        told.add([step(1, "gave up")])
        told.flush()
        assert not lines
        told.flush(is_end=True)
        told.flush(is_end=True)
    assert len(lines) == 1
