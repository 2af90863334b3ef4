"""When slices of a replay go out: pure arithmetic on a clock."""


class Pace:
    """Slices at their times; the first one at once, and those that are late too."""

    def __init__(self) -> None:
        self._began: float | None = None

    def wait_s(self, due_s: float, now: float) -> float:
        """How long until a slice goes out; 0 if its time has come.

        Args:
            due_s: Seconds of the replay at which it is due; that of the first one that is asked for is now.
            now: By any clock that does not jump.
        """
        if self._began is None:
            self._began = now - due_s
        return max(self._began + due_s - now, 0.0)
