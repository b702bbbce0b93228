"""Skip backoff: failures increase the skips, a success resets them."""

from __future__ import annotations

from chaffinch.runtime.skip_backoff import SkipBackoff


def skipped_count(backoff: SkipBackoff) -> int:
    """The number of chances in a row that are skipped."""
    count = 0
    while backoff.should_skip():
        count += 1
    return count


def test_skips_double_up_to_the_limit() -> None:
    backoff, counts = SkipBackoff(10), [0]
    for _ in range(6):
        backoff.failed()
        counts.append(skipped_count(backoff))
    assert counts == [0, 1, 2, 4, 8, 10, 10]


def test_success_resets_the_skip_count() -> None:
    backoff = SkipBackoff(10)
    for _ in range(5):
        backoff.failed()
    backoff.succeeded()
    assert skipped_count(backoff) == 10, "what was decided before is not taken back"
    backoff.failed()
    assert skipped_count(backoff) == 1
