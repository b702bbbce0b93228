"""What is in vain is tried ever more seldom, and at once again after it was of use."""

from __future__ import annotations

from chaffinch.runtime.pauses import Pauses


def gone_by(pauses: Pauses) -> int:
    """So many chances in a row."""
    count = 0
    while pauses.goes_by():
        count += 1
    return count


def test_one_two_four_up_to_the_longest() -> None:
    pauses, counts = Pauses(10), [0]
    for _ in range(6):
        pauses.was_in_vain()
        counts.append(gone_by(pauses))
    assert counts == [0, 1, 2, 4, 8, 10, 10]


def test_what_was_of_use_makes_up_for_all() -> None:
    pauses = Pauses(10)
    for _ in range(5):
        pauses.was_in_vain()
    pauses.was_of_use()
    assert gone_by(pauses) == 10, "what was decided before is not taken back"
    pauses.was_in_vain()
    assert gone_by(pauses) == 1
