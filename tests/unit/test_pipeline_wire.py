"""How long a server is waited for, and what is said of it."""

from __future__ import annotations

import itertools
import logging

import pytest

from hubsub.errors import NotConnectedError
from hubsub.pipeline import wire
from hubsub.pipeline.wire import Patience


class Clock:
    """Time that passes in sleep alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("says", [True, False])
def test_a_wait_is_told_at_once_and_each_quarter_of_a_minute(
    says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(), []
    monkeypatch.setattr(wire, "time", clock)
    monkeypatch.setattr(wire.LOG, "warning", lambda *args: told.append((clock.now, args[0] % args[1:])))
    patience = Patience(60.0, says)
    with pytest.raises(NotConnectedError):
        while True:
            patience.wait(NotConnectedError("no server answers", "a:1"))
    assert 57 < clock.now <= 60
    if not says:
        assert told == []
        return
    assert len(told) == 4 and told[0][0] < 1.5
    assert all(15 <= after[0] - before[0] <= 17 for before, after in itertools.pairwise(told))
    assert told[0][1].startswith("no server answers: a:1; trying for 59 s more")


def test_a_server_that_is_away_for_a_moment_is_nothing_to_speak_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "time", Clock())
    patience = Patience(60.0, says=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            patience.wait(NotConnectedError("no server answers", "a:1"))
            patience.renew()
    assert not caplog.records
