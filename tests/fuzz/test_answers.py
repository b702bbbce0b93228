"""A few worlds of nonsense answers in every test run; `make fuzz` runs many. Also that the fuzzer notices a client that fails."""

import pytest

from tests.fuzz import answer_fuzzer

SEEDS = (2, 3, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_survive_answers_without_sense(seed: int) -> None:
    reached = answer_fuzzer.run(seed, 20 * answer_fuzzer.STEPS)
    assert len({answer for answer, _ in reached}) > 12, "the requests do not get anywhere"


@pytest.mark.parametrize("part", ["consumer.core.fetcher.Fetcher", "producer.core.delivery.Delivery"])
def test_a_client_that_fails_on_an_answer_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(f"chaffinch.{part}.answered", fail)
    with pytest.raises(AssertionError, match="of seed 1: KeyError"):
        answer_fuzzer.run(1, 20 * answer_fuzzer.STEPS)
