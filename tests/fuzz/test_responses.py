"""A few worlds of nonsense answers in every test run; `make fuzz` runs many. Also that the fuzzer notices a client that fails."""

import pytest

from tests.fuzz import response_fuzzer

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_survive_random_responses(seed: int) -> None:
    reached = response_fuzzer.run(seed, 40 * response_fuzzer.STEPS)  # With brokers of both versions of transactions.
    assert len({answer for answer, _ in reached}) > 12, "the requests do not get anywhere"


@pytest.mark.parametrize("part", ["consumer.core.fetcher.Fetcher", "producer.core.produce_response_handler.ProduceResponseHandler"])
def test_client_failure_on_a_response_is_found(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(f"chaffinch.{part}.response_received", fail)
    with pytest.raises(AssertionError, match="of seed 1: KeyError"):
        response_fuzzer.run(1, 20 * response_fuzzer.STEPS)
