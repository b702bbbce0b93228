"""How seldom something is tried that is in vain: after each such try the next one, two, four ... chances go by."""

from __future__ import annotations


class SkipBackoff:
    """Of one thing that is tried whenever there is a chance. `skips_max`: so many chances at most go by in a row."""

    __slots__ = ("_next_skips", "_skips_left", "_skips_max")

    def __init__(self, skips_max: int) -> None:
        self._skips_max = skips_max
        self._skips_left = 0
        self._next_skips = 1

    def should_skip(self) -> bool:
        """A chance is there: whether it is one of those that go by."""
        if not self._skips_left:
            return False
        self._skips_left -= 1
        return True

    def failed(self) -> None:
        """What was tried came to nothing: twice as many chances go by as the last time."""
        self._skips_left = self._next_skips
        self._next_skips = min(2 * self._next_skips, self._skips_max)

    def succeeded(self) -> None:
        """It came to something: after the next one in vain a single chance goes by."""
        self._next_skips = 1
