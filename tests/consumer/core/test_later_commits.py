"""Retried commits, later commits of the same partitions, and commits for topics missing in metadata."""

from contextlib import suppress

import pytest

from chaffinch import errors
from chaffinch.consumer.core.membership_states import State
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.consumer.core.rig import Rig, number_of


def tps(**offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """`p0=5` and so on."""
    return {TopicPartition("t", int(name[1:])): OffsetAndMetadata(offset) for name, offset in offsets.items()}


def sent(rig: Rig) -> dict[int, int]:
    """Of the one that waits: partition and offset."""
    (request,) = rig.pending(OffsetCommitRequest)
    return {found.partition_index: found.committed_offset for found in request.message.topics[0].partitions}


def answer(rig: Rig, code: str = "NONE") -> None:
    errors_seen = [OffsetCommitResponsePartition(partition_index=number, error_code=number_of(code)) for number in sent(rig)]
    rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=errors_seen)]))


class TestLaterCommits:
    """As after a `commit` that `wakeup` or KeyboardInterrupt ended: it continues without a waiting caller."""

    @pytest.fixture
    def errors_seen(self) -> list[errors.KafkaException | None]:
        return []

    @pytest.fixture
    def rig(self, errors_seen: list[errors.KafkaException | None]) -> Rig:
        rig = Rig().assign(0, 1)
        rig.group.commits.commit(tps(p0=3, p1=4), rig.steady_ms + 60_000, errors_seen.append, retries=True)
        rig.step()
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
        assert errors_seen == []
        return rig

    def commit(self, rig: Rig, **offsets: int) -> None:
        done: list[errors.KafkaException | None] = []
        rig.group.commits.commit(tps(**offsets), rig.steady_ms + 60_000, done.append, retries=True)
        rig.step()
        assert sent(rig) == {int(name[1:]): offset for name, offset in offsets.items()}
        answer(rig)
        assert done == [None]

    def test_commit_is_retried(self, rig: Rig, errors_seen: list[errors.KafkaException | None]) -> None:
        rig.advance(1_000)
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig)
        assert errors_seen == [None]

    def test_partitions_of_a_later_commit_are_not_retried(self, rig: Rig, errors_seen: list[errors.KafkaException | None]) -> None:
        self.commit(rig, p0=7)
        rig.advance(1_000)
        assert sent(rig) == {1: 4}
        answer(rig)
        assert isinstance(errors_seen[0], errors.CoordinatorLoadInProgressException)
        assert "the offsets of t-1 were committed" in str(errors_seen[0])

    def test_fully_superseded_commit_is_not_retried(self, rig: Rig, errors_seen: list[errors.KafkaException | None]) -> None:
        self.commit(rig, p0=7, p1=8)
        rig.advance(1_000)
        assert not rig.pending(OffsetCommitRequest)
        assert isinstance(errors_seen[0], errors.CoordinatorLoadInProgressException)

    def test_in_flight_commit_is_rejected_after_a_later_one(self, errors_seen: list[errors.KafkaException | None]) -> None:
        rig = Rig().assign(0)
        for offset, results in ((3, errors_seen), (7, [])):
            rig.group.commits.commit(tps(p0=offset), rig.steady_ms + 60_000, results.append, retries=True)
            rig.step()
        refused = OffsetCommitResponsePartition(partition_index=0, error_code=number_of("COORDINATOR_LOAD_IN_PROGRESS"))
        first, second = rig.pending(OffsetCommitRequest)
        rig.waiting.remove(first)
        rig.answer(first, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[refused])]))
        rig.advance(1_000)
        assert rig.pending(OffsetCommitRequest) == [second]
        answer(rig)
        rig.advance(1_000)
        assert not rig.pending(OffsetCommitRequest)
        assert isinstance(errors_seen[0], errors.CoordinatorLoadInProgressException)

    def test_rejected_later_commit_supersedes_nothing(self, rig: Rig, errors_seen: list[errors.KafkaException | None]) -> None:
        done: list[errors.KafkaException | None] = []
        rig.group.commits.commit(tps(p0=7), rig.steady_ms + 60_000, done.append, retries=False)
        rig.step()
        rig.advance(1_000)
        assert sent(rig) == {0: 7}
        answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
        assert isinstance(done[0], errors.CoordinatorLoadInProgressException)
        rig.advance(1_000)
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig)
        assert errors_seen == [None]


class TestTopicsMissingInMetadata:
    """One answer may be that of a broker that lags behind."""

    @pytest.fixture
    def rig(self) -> Rig:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 10_000}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.core.context.refresh()
        rig.advance(1_000)
        rig.answer_metadata(number_of("UNKNOWN_TOPIC_OR_PARTITION"))
        return rig

    def test_they_are_committed(self, rig: Rig) -> None:
        rig.advance(10_000)
        rig.poll()
        assert sent(rig) == {0: 5, 1: 7}

    def test_unknown_to_the_coordinator_is_skipped_afterwards(self) -> None:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 1_000}).assign(0, 1)

        def play(code: str, commits: list[dict[int, int]]) -> list[dict[int, int]]:
            for _ in range(20):
                rig.core.context.refresh()
                rig.advance(1_000)
                if rig.pending(MetadataRequest):
                    rig.answer_metadata(number_of(code))
                with suppress(errors.UnknownTopicOrPartitionException):
                    rig.poll()
                if rig.pending(OffsetCommitRequest):
                    commits.append(sent(rig))
                    answer(rig, code)
            return commits

        assert len(play("UNKNOWN_TOPIC_OR_PARTITION", [])) == 1
        assert sum("offsets were not committed" in report for report in rig.reports) == 1
        assert play("NONE", [])[-1] == {0: 0, 1: 0}

    @pytest.mark.parametrize("unknown", [0, 1])
    def test_other_partitions_are_retried(self, rig: Rig, unknown: int) -> None:
        """Before partitions are revoked, in any order of the response."""
        errors_seen: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 60_000, errors_seen.append, retries=True)
        rig.step()
        given = {unknown: "UNKNOWN_TOPIC_OR_PARTITION", 1 - unknown: "COORDINATOR_LOAD_IN_PROGRESS"}
        partitions = [OffsetCommitResponsePartition(partition_index=index, error_code=number_of(given[index])) for index in (0, 1)]
        rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=partitions)]))
        assert errors_seen == []
        rig.advance(1_000)
        assert list(sent(rig)) == [1 - unknown]
        answer(rig)
        assert isinstance(errors_seen[0], errors.UnknownTopicOrPartitionException)
        assert f"the offsets of t-{1 - unknown} were committed" in str(errors_seen[0])
