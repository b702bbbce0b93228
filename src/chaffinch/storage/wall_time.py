"""Conversion between the two clocks of a broker: `steady_ms` and `wall_ms`.

Events carry `steady_ms`, a monotonic time that starts at the wall clock's value at broker start; only its differences have a meaning. All
waits use it, so that setting the machine's clock ends no session and delays no response. Stored and reported times (of records, offsets,
transactions), and the age of stored data, use the wall clock: see `WallTime.at`.
"""


class WallTime:
    """Offset of wall time to steady time, shared by all parts of a broker and updated by its shell."""

    __slots__ = ("offset_ms",)

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def at(self, steady_ms: int) -> int:
        """Wall time (ms since 1970) at the given steady time."""
        return steady_ms + self.offset_ms

    def when(self, wall_ms: int) -> int:
        """Steady time at which the wall clock shows `wall_ms`, unless it is set before."""
        return wall_ms - self.offset_ms
