"""Skip backoff: failures increase the skips, a success resets them."""

from __future__ import annotations

from chaffinch.runtime.skip_backoff import SkipBackoff


def gone_by(pauses: SkipBackoff) -> int:
    """So many chances in a row."""
    count = 0
    while pauses.should_skip():
        count += 1
    return count


def test_one_two_four_up_to_the_longest() -> None:
    pauses, counts = SkipBackoff(10), [0]
    for _ in range(6):
        pauses.failed()
        counts.append(gone_by(pauses))
    assert counts == [0, 1, 2, 4, 8, 10, 10]


def test_what_was_of_use_makes_up_for_all() -> None:
    pauses = SkipBackoff(10)
    for _ in range(5):
        pauses.failed()
    pauses.succeeded()
    assert gone_by(pauses) == 10, "what was decided before is not taken back"
    pauses.failed()
    assert gone_by(pauses) == 1
