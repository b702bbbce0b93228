"""Batch code for several culprits, and counter increments of a rejection."""

import pytest

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.errors.exceptions import Culprit
from chaffinch.records.validation_result import Rejected, code_of

OFFSET, KEY, TIME, SIZE = codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY, codes.INVALID_TIMESTAMP, codes.MESSAGE_TOO_LARGE


def culprits(*seen: ErrorCode) -> tuple[Culprit, ...]:
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
def test_code_of_the_batch_follows_its_culprits(seen: list[ErrorCode], code: ErrorCode) -> None:
    assert code_of(culprits(*seen)) is code


def test_a_rejection_without_culprits_keeps_its_code_under_both_numberings() -> None:
    rejected = Rejected(code=codes.INVALID_RECORD, message="why", counts=(("A", 1),))
    assert rejected.response_errors("apache") == rejected.response_errors("kip") == (codes.INVALID_RECORD, ())
