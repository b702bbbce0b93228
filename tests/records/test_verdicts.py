"""One code for many culprits, and what a verdict says of its counters."""

import pytest

from chaffinch.errors import codes
from chaffinch.errors.exceptions import Culprit
from chaffinch.records.verdicts import Rejected, code_of, response_fields

OFFSET, KEY, TIME, SIZE = codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY, codes.INVALID_TIMESTAMP, codes.MESSAGE_TOO_LARGE


def culprits(*seen):
    return tuple(Culprit(index, code, f"message {index}") for index, code in enumerate(seen))


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ([KEY], KEY),
        ([KEY, KEY], KEY),
        ([TIME], TIME),
        ([KEY, TIME], TIME),
        ([TIME, OFFSET], TIME),
        ([OFFSET, KEY], OFFSET),
        ([KEY, SIZE], OFFSET),
    ],
)
def test_the_code_of_the_batch(seen, code):
    assert code_of(culprits(*seen)) is code


def test_a_rejection_without_culprits_keeps_its_code_under_both_numberings():
    rejected = Rejected(code=codes.INVALID_RECORD, message="why", counts=(("A", 1),))
    assert response_fields(rejected, "apache") == (87, (), "why")
    assert response_fields(rejected, "kip") == (85, (), "why")


def test_the_first_counter_is_at_hand():
    assert (Rejected(code=KEY, message="").counter, Rejected(code=KEY, message="").count) == (None, 1)
    two = Rejected(code=TIME, message="", counts=(("A", 3), ("B", 4)))
    assert (two.counter, two.count) == ("A", 3)
