"""When slices of a replay go out: pure arithmetic on a clock."""

from collections.abc import Sequence


class Pace:
    """Slices in their order, each when its time has come; those that are late go out at once.

    Args:
        slices: Numbers of the slices that have records, rising.
        length_s: Seconds that a slice stands for.
        done: The last one that is out already; the first behind it is due at once.
        now: When it begins, by the clock that `wait_s` is asked with.
    """

    def __init__(self, slices: Sequence[int], length_s: float, done: int | None, now: float) -> None:
        self._left = [number for number in slices if done is None or number > done]
        self._length_s = length_s
        first = self._left[0] if self._left else 0
        self._began = now if done is None else now - first * length_s

    def __bool__(self) -> bool:
        return bool(self._left)

    def wait_s(self, now: float) -> float:
        """How long until the next slice is due; 0 if it is."""
        return max(self._began + self._left[0] * self._length_s - now, 0.0)

    def take(self) -> int:
        """The next slice, which counts as out from here on."""
        return self._left.pop(0)
