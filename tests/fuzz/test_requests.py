"""A few worlds of nonsense requests in every test run; `make fuzz` runs many. Also what the fuzzer can find, and what it found."""

import pytest

from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.core_client import Cluster
from tests.fuzz import request_fuzzer

SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_broker_survives_random_requests(seed: int) -> None:
    reached = request_fuzzer.run(seed, 2 * request_fuzzer.WORLD_REQUESTS)
    assert len({api for api, _, _ in reached}) > 20, "the requests do not get anywhere"


def test_broker_failure_on_a_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("chaffinch.broker.core.broker_core.HANDLERS", dict.fromkeys(range(100), fail))
    with pytest.raises(AssertionError, match="world 1000003 of seed 1"):
        request_fuzzer.run(1, 1)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_in_versions_without_ids(version: int) -> None:
    answer = Cluster().client().ask(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), version)
    assert [topic.error_code for topic in answer.topics] == [42]
