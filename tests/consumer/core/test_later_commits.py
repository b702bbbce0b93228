"""Commits that are tried again, and later ones that tell of the same partitions; and of topics that metadata does not know for a while."""

from contextlib import suppress

import pytest

from chaffinch import errors
from chaffinch.consumer.core.membership_moves import State
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.consumer.core.rig import Rig, number_of


def places(**offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """`p0=5` and so on."""
    return {TopicPartition("t", int(name[1:])): OffsetAndMetadata(offset) for name, offset in offsets.items()}


def sent(rig: Rig) -> dict[int, int]:
    """Of the one that waits: partition and offset."""
    (request,) = rig.pending(OffsetCommitRequest)
    return {found.partition_index: found.committed_offset for found in request.message.topics[0].partitions}


def answer(rig: Rig, code: str = "NONE") -> None:
    told = [OffsetCommitResponsePartition(partition_index=number, error_code=number_of(code)) for number in sent(rig)]
    rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=told)]))


class TestLaterCommits:
    """As after a `commit` that `wakeup` or Ctrl-C ended: nobody waits for it, and it goes on."""

    @pytest.fixture
    def told(self) -> list[errors.KafkaException | None]:
        return []

    @pytest.fixture
    def rig(self, told: list[errors.KafkaException | None]) -> Rig:
        rig = Rig().assign(0, 1)
        rig.group.commits.commit(places(p0=3, p1=4), rig.steady_ms + 60_000, told.append, retries=True)
        rig.step()
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
        assert told == []
        return rig

    def commit(self, rig: Rig, **offsets: int) -> None:
        done: list[errors.KafkaException | None] = []
        rig.group.commits.commit(places(**offsets), rig.steady_ms + 60_000, done.append, retries=True)
        rig.step()
        assert sent(rig) == {int(name[1:]): offset for name, offset in offsets.items()}
        answer(rig)
        assert done == [None]

    def test_it_is_tried_again(self, rig: Rig, told: list[errors.KafkaException | None]) -> None:
        rig.advance(1_000)
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig)
        assert told == [None]

    def test_but_not_for_what_a_later_one_tells_of(self, rig: Rig, told: list[errors.KafkaException | None]) -> None:
        self.commit(rig, p0=7)
        rig.advance(1_000)
        assert sent(rig) == {1: 4}
        answer(rig)
        assert isinstance(told[0], errors.CoordinatorLoadInProgressException)
        assert "the offsets of t-1 were committed" in str(told[0])

    def test_nor_at_all_where_that_is_everything(self, rig: Rig, told: list[errors.KafkaException | None]) -> None:
        self.commit(rig, p0=7, p1=8)
        rig.advance(1_000)
        assert not rig.pending(OffsetCommitRequest)
        assert isinstance(told[0], errors.CoordinatorLoadInProgressException)

    def test_one_under_way_that_is_refused_later(self, told: list[errors.KafkaException | None]) -> None:
        rig = Rig().assign(0)
        for offset, heard in ((3, told), (7, [])):
            rig.group.commits.commit(places(p0=offset), rig.steady_ms + 60_000, heard.append, retries=True)
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
        assert isinstance(told[0], errors.CoordinatorLoadInProgressException)

    def test_a_later_one_that_is_refused_tells_of_nothing(self, rig: Rig, told: list[errors.KafkaException | None]) -> None:
        done: list[errors.KafkaException | None] = []
        rig.group.commits.commit(places(p0=7), rig.steady_ms + 60_000, done.append, retries=False)
        rig.step()
        rig.advance(1_000)
        assert sent(rig) == {0: 7}
        answer(rig, "COORDINATOR_LOAD_IN_PROGRESS")
        assert isinstance(done[0], errors.CoordinatorLoadInProgressException)
        rig.advance(1_000)
        assert sent(rig) == {0: 3, 1: 4}
        answer(rig)
        assert told == [None]


class TestTopicsThatMetadataDoesNotKnow:
    """One answer may be that of a broker that lags behind."""

    @pytest.fixture
    def rig(self) -> Rig:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 10_000}).reach(State.STABLE)
        rig.answer_offsets({0: 5, 1: 7})
        rig.core.wiring.refresh()
        rig.advance(1_000)
        rig.tell_metadata(number_of("UNKNOWN_TOPIC_OR_PARTITION"))
        return rig

    def test_are_committed(self, rig: Rig) -> None:
        rig.advance(10_000)
        rig.poll()
        assert sent(rig) == {0: 5, 1: 7}

    def test_once_where_the_coordinator_says_so_too(self) -> None:
        rig = Rig(**{"enable.auto.commit": True, "auto.commit.interval.ms": 1_000}).assign(0, 1)

        def play(code: str, commits: list[dict[int, int]]) -> list[dict[int, int]]:
            for _ in range(20):
                rig.core.wiring.refresh()
                rig.advance(1_000)
                if rig.pending(MetadataRequest):
                    rig.tell_metadata(number_of(code))
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
    def test_the_others_are_tried_again(self, rig: Rig, unknown: int) -> None:
        """Before partitions are given up, whatever the order of the answer."""
        told: list[errors.KafkaException | None] = []
        rig.group.commits.commit_all(rig.steady_ms + 60_000, told.append, retries=True)
        rig.step()
        given = {unknown: "UNKNOWN_TOPIC_OR_PARTITION", 1 - unknown: "COORDINATOR_LOAD_IN_PROGRESS"}
        partitions = [OffsetCommitResponsePartition(partition_index=index, error_code=number_of(given[index])) for index in (0, 1)]
        rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=partitions)]))
        assert told == []
        rig.advance(1_000)
        assert list(sent(rig)) == [1 - unknown]
        answer(rig)
        assert isinstance(told[0], errors.UnknownTopicOrPartitionException)
        assert f"the offsets of t-{1 - unknown} were committed" in str(told[0])
