"""Every checker is needed: a mutation names it, and its test fails if the checker finds nothing.

The same holds for the two ways in which a world gets stuck.
"""

from __future__ import annotations

import pytest

from simulation import checkers
from simulation.consumers import consumer_checkers
from tests.simulation import (
    test_consumer_mutations,
    test_inline_send_mutations,
    test_mutations,
    test_producer_mutations,
    test_topic_mutations,
)
from tests.simulation.mutation import Mutation, checker_names

MUTATIONS = [
    *test_mutations.BROKER,
    *test_mutations.DISK,
    *test_mutations.SPARK,
    *test_producer_mutations.PRODUCER,
    *test_inline_send_mutations.MUTATIONS,
    *test_topic_mutations.MUTATIONS,
    *test_consumer_mutations.MUTATIONS,
]
CHECKERS = [*checker_names(checkers), *checker_names(consumer_checkers)]


@pytest.mark.parametrize("checker", CHECKERS)
def test_checker_has_a_mutation(checker: str) -> None:
    assert [mutation.name for mutation in MUTATIONS if mutation.by == checker and not mutation.raises]


def test_mutations_name_existing_checkers() -> None:
    assert {mutation.by for mutation in MUTATIONS} - {""} == set(CHECKERS)


@pytest.mark.parametrize("words", ["stuck: work is left", "stuck: a transaction is left undecided"])
def test_mutation_expects_a_stuck_world(words: str) -> None:
    assert [mutation.name for mutation in MUTATIONS if mutation.says == (words,) and not mutation.raises]


def test_mutation_without_expectation_is_refused() -> None:
    with pytest.raises(ValueError, match="sun: nothing is expected"):
        Mutation(name="sun", breaks=lambda _patch: None)


@pytest.mark.parametrize(
    ("violation", "checker", "is_found"),
    [
        ("row 3 is gone", "rows", True),
        ("row 3 is gone", "others", False),
        ("raised: KeyError: row", "", False),
        ("stuck: work is left", "", False),
    ],
)
def test_mutation_is_found_only_by_its_checker(violation: str, checker: str, is_found: bool) -> None:
    mutation = Mutation(name="rain", breaks=lambda _patch: None, says=("row",), by="rows")
    assert mutation.is_found(violation, checker) is is_found


@pytest.mark.parametrize(("violation", "is_found"), [("raised: KeyError: 7", True), ("raised: AssertionError", False), ("KeyError", False)])
def test_exception_counts_if_the_mutation_expects_it(violation: str, is_found: bool) -> None:
    mutation = Mutation(name="rain", breaks=lambda _patch: None, says=("is gone",), raises=("KeyError",))
    assert mutation.is_found(violation, "") is is_found
