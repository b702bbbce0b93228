"""How seldom something is tried that is in vain: after each such try the next one, two, four ... chances go by."""

from __future__ import annotations


class Pauses:
    """Of one thing that is tried whenever there is a chance. `longest`: so many chances at most go by in a row."""

    __slots__ = ("_left", "_longest", "_next")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._left = 0
        self._next = 1

    def goes_by(self) -> bool:
        """A chance is there: whether it is one of those that go by."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def was_in_vain(self) -> None:
        """What was tried came to nothing: twice as many chances go by as the last time."""
        self._left = self._next
        self._next = min(2 * self._next, self._longest)

    def was_of_use(self) -> None:
        """It came to something: after the next one in vain a single chance goes by."""
        self._next = 1
