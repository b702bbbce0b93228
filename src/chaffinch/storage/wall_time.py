"""What the wall clock shows, for those who are told another time.

A broker's events carry `now_ms`, a steady time: it never goes back and never jumps, and only differences of it mean anything. It begins at
what the wall clock showed when the broker started. Whatever waits is measured by it, so that nobody's session ends, and no answer is an
hour late, because somebody sets the machine's clock. What is stored or told as a time (of records, offsets, transactions) is the wall
clock's, and so is the age of what was stored: see `WallTime.at`.
"""


class WallTime:
    """Shared by all parts of a broker. `offset_ms`: by how much the wall clock is ahead of `now_ms`; its shell keeps it up to date."""

    __slots__ = ("offset_ms",)

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def at(self, now_ms: int) -> int:
        """What the wall clock shows at `now_ms`, in ms since 1970."""
        return now_ms + self.offset_ms

    def when(self, wall_ms: int) -> int:
        """The `now_ms` at which the wall clock shows `wall_ms`, unless somebody sets it before."""
        return wall_ms - self.offset_ms
