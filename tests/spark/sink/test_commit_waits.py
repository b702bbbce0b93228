"""Which waits of a commit are logged: one line within 3 seconds, however long a single attempt takes, then after growing pauses."""

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.wait_log import Wait
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.retry_policy import Attempts, RetryPolicy
from chaffinch.spark.sink.commit_waits import CommitWaits, Unanswered

ADDRESS = Address("broker", 9092)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def waits(lines: list[str]) -> CommitWaits:
    return CommitWaits(lines.append, request_timeout_ms=30_000)


def wait(since_ms: int, why: str = "orders-3 does not exist") -> Wait:
    return Wait("cause", "an acknowledged batch for orders-3", since_ms, why, until_ms=60_000, limit="transaction.timeout.ms")


@pytest.mark.parametrize("attempt_ms", [1, 500, 2_000, 9_000])
def test_first_line_comes_within_3_seconds_or_after_the_first_attempt(waits: CommitWaits, lines: list[str], attempt_ms: int) -> None:
    steady_ms = attempt_ms
    while not lines:
        waits.retry(wait(attempt_ms), steady_ms, 100, attempt_ms)
        logged_ms, steady_ms = steady_ms, steady_ms + 100 + attempt_ms
    assert logged_ms <= max(3_000, attempt_ms)
    assert lines == [
        f"an acknowledged batch for orders-3, for {logged_ms} ms: orders-3 does not exist; "
        f"retrying for up to {60_000 - logged_ms} ms more (transaction.timeout.ms)"
    ]


def test_short_wait_is_not_logged(waits: CommitWaits, lines: list[str]) -> None:
    for steady_ms in range(0, 2_000, 100):
        waits.retry(wait(0), steady_ms, 100, 1)
    assert lines == []


def test_lines_come_after_growing_pauses(waits: CommitWaits, lines: list[str]) -> None:
    for steady_ms in range(0, 100_000, 100):
        waits.retry(wait(0), steady_ms, 100, 1)
    assert len(lines) == 4


def test_broker_without_response_is_logged(waits: CommitWaits, lines: list[str]) -> None:
    under_way = [Unanswered(TopicPartition("orders", number), ADDRESS, 1_000 + number) for number in (1, 0)]
    assert waits.answers(under_way, 1_100) == 3_500
    assert lines == []
    assert waits.answers(under_way, 3_500) > 3_500
    assert lines == [
        "the Produce response for orders-0 from broker:9092, for 2500 ms: no response yet; "
        "retrying for up to 27500 ms more (kafka.request.timeout.ms)"
    ]
    waits.answers(under_way, 3_600)
    assert len(lines) == 1
    assert waits.answers([], 3_700) == 33_700


def test_retried_request_is_logged_with_its_option() -> None:
    attempts = Attempts(RetryPolicy(block_max_ms=8_000, wait_ms=lambda failures: 100))
    assert not attempts.is_expired(5_000)
    said = attempts.wait_info("DescribeProducers of orders-3", "orders-3: no such partition.").line(8_000)
    assert said == (
        "DescribeProducers of orders-3, for 3000 ms: orders-3: no such partition; retrying for up to 5000 ms more (kafka.max.block.ms)"
    )
