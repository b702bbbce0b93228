"""How long a transaction may last, from the size of a batch and the rate of its push."""

from dataclasses import replace
from typing import Any

import pytest

from chaffinch.errors.codes import Group
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.timeout import transaction_timeout_ms
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot
from tests.spark.commit.commit_world import Broker, Query, outcome
from tests.spark.commit.test_protocol import two_batches


def sized_plan(byte_count: int, **changes: Any) -> CommitPlan:
    _broker, query = two_batches()
    plan = query.plan(0, "r", **changes)
    part = plan.outcomes[0].batches[0]
    big = replace(part, bytes=replace(part.bytes, byte_count=byte_count))
    return replace(plan, outcomes=(replace(plan.outcomes[0], batches=(big,)),))


class TestTimeouts:
    @pytest.mark.parametrize(
        ("byte_count", "rate", "given", "expected"),
        [(0, 1e6, None, 60_000), (100_000_000, 1e6, None, 400_000), (400_000_000, 1e6, None, 900_000), (10_000_000, 1e6, 12_000, 12_000)],
    )
    def test_from_size_and_rate(self, byte_count: int, rate: float, given: int | None, expected: int) -> None:
        assert transaction_timeout_ms(sized_plan(byte_count, push_bytes_per_s=rate, transaction_timeout_ms=given)) == expected

    def test_many_small_batches_raise_the_timeout(self) -> None:
        """Of 5000 tasks with a row for each of 64 partitions: at a millisecond for three of them they take longer than a minute."""
        plan = sized_plan(100, push_bytes_per_s=20e6)
        (part,) = plan.outcomes[0].batches
        many = replace(plan, outcomes=(replace(plan.outcomes[0], batches=(part,) * 320_000),))
        assert transaction_timeout_ms(many) == 4 * (320_000 * 100 * 1000 // 20_000_000 + 96_000)

    @pytest.mark.parametrize(("given", "allowed"), [(None, "900000 ms"), (500_000, "500000 ms")])
    def test_batch_over_the_limit_is_refused_with_both_numbers(self, given: int | None, allowed: str) -> None:
        plan = sized_plan(2_000_000_000, push_bytes_per_s=1e6, transaction_timeout_ms=given)
        with pytest.raises(Refusal, match=f"takes about 2000000 ms .* may last {allowed}"):
            transaction_timeout_ms(plan)

    @pytest.mark.parametrize(
        ("limit_ms", "given_ms", "text"),
        [
            (900_000, 1_000_000, "kafka.transaction.timeout.ms=1000000 is more than the broker's transaction.max.timeout.ms of 900000: "
             "set kafka.transaction.timeout.ms to at most 900000, leave it out, or raise the broker's limit"),
            (None, 1_000_000, "kafka.transaction.timeout.ms=1000000 is more than the broker's transaction.max.timeout.ms: "
             "set kafka.transaction.timeout.ms to a smaller value, leave it out, or raise the broker's limit"),
            (None, None, "a transaction of 60000 ms, as this batch needs, is more than the broker's transaction.max.timeout.ms allows: "
             "raise that limit, or set kafka.transaction.timeout.ms to at most that"),
        ],
    )  # fmt: skip
    def test_timeout_refused_by_broker_reports_value_limit_and_option(self, limit_ms: int | None, given_ms: int | None, text: str) -> None:
        maximum_ms = 900_000 if given_ms else 50_000
        query = Query(Broker(settings={"transaction.max.timeout.ms": maximum_ms}), [(outcome({0: [(b"k", b"v")]}),)])
        target = TargetSnapshot(topics=(), reported_timeout_max_ms=limit_ms)
        with pytest.raises(Refusal) as caught:
            query.commit(0, transaction_timeout_ms=given_ms, target=target)
        assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "INVALID_TRANSACTION_TIMEOUT")
        assert caught.value.text == text
