"""No checker is there that nothing has to be found by: each is demanded by a mutation, whose test fails when the checker finds nothing.

So are the two ways in which a world does not come to its end.
"""

from __future__ import annotations

import pytest

from simulation import checkers
from simulation.consumers import consumer_checkers
from tests.simulation import (
    test_consumer_mutations,
    test_express_mutations,
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
    *test_express_mutations.MUTATIONS,
    *test_topic_mutations.MUTATIONS,
    *test_consumer_mutations.MUTATIONS,
]
CHECKERS = [*checker_names(checkers), *checker_names(consumer_checkers)]


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_mutation_demands_it(checker: str) -> None:
    assert [mutation.name for mutation in MUTATIONS if mutation.by == checker and not mutation.raises]


def test_mutations_name_checkers_that_there_are() -> None:
    assert {mutation.by for mutation in MUTATIONS} - {""} == set(CHECKERS)


@pytest.mark.parametrize("words", ["stuck: work is left", "stuck: a transaction is left undecided"])
def test_mutations_demand_that_a_world_is_stuck(words: str) -> None:
    assert [mutation.name for mutation in MUTATIONS if mutation.says == (words,) and not mutation.raises]


def test_a_mutation_says_what_has_to_be_found() -> None:
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
def test_what_a_mutation_demands_is_not_found_by_others(violation: str, checker: str, is_found: bool) -> None:
    mutation = Mutation(name="rain", breaks=lambda _patch: None, says=("row",), by="rows")
    assert mutation.is_found(violation, checker) is is_found


@pytest.mark.parametrize(("violation", "is_found"), [("raised: KeyError: 7", True), ("raised: AssertionError", False), ("KeyError", False)])
def test_an_exception_counts_where_a_mutation_says_so(violation: str, is_found: bool) -> None:
    mutation = Mutation(name="rain", breaks=lambda _patch: None, says=("is gone",), raises=("KeyError",))
    assert mutation.is_found(violation, "") is is_found
