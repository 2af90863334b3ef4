"""Schedule of a replay's slices: pure arithmetic on a clock."""


class Pace:
    """Slices at their times; the first one at once, and late ones, too."""

    def __init__(self) -> None:
        self._began: float | None = None

    def wait_s(self, due_s: float, now: float) -> float:
        """How long until a slice is sent; 0 if its time has come.

        Args:
            due_s: Its time in seconds of the replay; the time of the first slice that is asked for is now.
            now: Seconds of any clock that does not jump.
        """
        if self._began is None:
            self._began = now - due_s
        return max(self._began + due_s - now, 0.0)
