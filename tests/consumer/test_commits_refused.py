"""Why a commit was refused, in words that fit: who is no member yet, who never is, and offsets of what is not there."""

from __future__ import annotations

import pytest

from chaffinch import EmbeddedBroker, OffsetAndMetadata, TopicPartition, errors
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected
from chaffinch.consumer.core.membership_states import State
from chaffinch.errors import codes
from chaffinch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.consumer.conftest import ConsumerOf
from tests.consumer.core.rig import Rig
from tests.consumer.polling import LIMIT_S, poll_until


def test_commit_before_the_first_poll_fails(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker)
    consumer.subscribe([topic])
    consumer.commit()  # Nothing was read, so there is nothing to commit.
    with pytest.raises(errors.CommitFailedException, match=r"is not a member of group '.*' yet: it joins with its first poll"):
        consumer.commit({TopicPartition(topic, 0): 0})


def test_commit_by_a_non_member_fails(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    member, stranger = consumer_of(broker), consumer_of(broker)
    member.subscribe([topic])
    poll_until(lambda: bool(member.assignment()), member)
    stranger.assign([TopicPartition(topic, 0)])
    with pytest.raises(errors.CommitFailedException, match="has members that share its partitions, so only they commit for it"):
        stranger.commit({TopicPartition(topic, 0): 0}, timeout=LIMIT_S)


def test_too_long_metadata_fails(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker)
    with pytest.raises(
        errors.OffsetMetadataTooLarge, match=r"the metadata has 5000 characters, more than .*offset\.metadata\.max\.bytes"
    ) as caught:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "m" * 5_000)})
    assert "producer" not in str(caught.value)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "m")})


@pytest.mark.parametrize("began_ms", [0, 1_000])
def test_commit_of_a_missing_partition_fails(began_ms: int) -> None:
    rig = Rig()
    rig.steady_ms = began_ms
    rig.assign(0)
    refused = [OffsetCommitResponsePartition(partition_index=7, error_code=codes.UNKNOWN_TOPIC_OR_PARTITION.number)]
    outcomes: list[errors.KafkaException | None] = []
    rig.group.commits.commit({TopicPartition("t", 7): OffsetAndMetadata(1)}, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.step()
    while not outcomes:
        for commit in rig.group.commits._commits:
            assert commit.unknown_since_ms == (None if rig.steady_ms == began_ms else began_ms)
        for _ in rig.pending(OffsetCommitRequest):
            rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=refused)]))
        rig.advance(100)
    assert 3_000 <= rig.steady_ms - began_ms <= 5_000
    assert isinstance(outcomes[0], errors.UnknownTopicOrPartitionException)


@pytest.mark.parametrize("is_late", [False, True])
def test_rejection_of_one_partition_names_it(is_late: bool) -> None:
    """Offsets that the coordinator stored are committed, and the error names them."""
    rig = Rig().assign(0)
    outcomes: list[errors.KafkaException | None] = []
    offsets = {TopicPartition("t", number): OffsetAndMetadata(1) for number in (0, 2, 9)}
    rig.group.commits.commit(offsets, rig.steady_ms + (1_000 if is_late else 60_000), outcomes.append, retries=True)
    rig.step()
    parts = [OffsetCommitResponsePartition(partition_index=number, error_code=code) for number, code in ((0, 0), (9, 3), (2, 0))]
    while not outcomes:
        for _ in rig.pending(OffsetCommitRequest):
            rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=parts)]))
        rig.advance(100)
    text = str(outcomes[0])
    assert text.count("; the offsets of t-0, t-2 were committed") == 1
    assert ("offsets of t-9 were not committed in time" if is_late else "there is no partition 9") in text


def test_partitions_rejected_one_after_the_other() -> None:
    """Each partition was stored once, so all are committed, and no error is left."""
    rig = Rig().assign(0)
    outcomes: list[errors.KafkaException | None] = []
    offsets = {TopicPartition("t", number): OffsetAndMetadata(1) for number in (0, 1)}
    rig.group.commits.commit(offsets, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.step()
    for codes_of_partitions in ((0, 3), (3, 0)):
        assert not outcomes
        parts = [OffsetCommitResponsePartition(partition_index=number, error_code=code) for number, code in enumerate(codes_of_partitions)]
        while not rig.pending(OffsetCommitRequest):
            rig.advance(100)
        rig.answer(OffsetCommitRequest, OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=parts)]))
    assert outcomes == [None]


@pytest.mark.parametrize(
    ("tp", "says"),
    [
        (7, "has partition 0 alone, there is no partition 7: use an existing partition, or add partitions"),
        (None, "topic 'nowhere' does not exist: misspelt, not created yet, .*: create it"),
    ],
)
def test_missing_partition_has_the_usual_text(
    name: str, consumer_of: ConsumerOf, tp: int | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaffinch.consumer.core.commits.MISSING_MS", 100)
    with EmbeddedBroker(topics={name: {"partitions": 1}}, config={"auto.create.topics.enable": False}) as broker:
        consumer = consumer_of(broker)
        missing = TopicPartition("nowhere", 0) if tp is None else TopicPartition(name, tp)
        consumer.assign([missing])
        with pytest.raises(errors.UnknownTopicOrPartitionException, match=says):
            consumer.commit({missing: 1}, timeout=LIMIT_S)


class TestCoordinatorIsUnknown:
    """There is no group yet that could rebalance, so a commit waits, as others do."""

    def committing(self, *, retries: bool = True) -> tuple[Rig, list[errors.KafkaException | None]]:
        """By a member that has polled, and has reached no broker."""
        rig = Rig()
        outcomes: list[errors.KafkaException | None] = []
        rig.core.subscribe(["t"])
        rig.poll()
        assert rig.state is State.JOINING
        rig.step(Disconnected(address=Address("b", 1), reason="refused"))
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(1)}, rig.steady_ms + 60_000, outcomes.append, retries=retries)
        rig.group.commits.committed.look_up([TopicPartition("t", 0)], rig.steady_ms + 60_000, "looked up")
        rig.advance(59_999)
        assert outcomes == []
        return rig, outcomes

    @pytest.mark.parametrize("retries", [True, False])
    def test_commit_waits_until_its_timeout(self, retries: bool) -> None:
        rig, outcomes = self.committing(retries=retries)
        rig.advance(1)
        for error in (outcomes[0], rig.errors[0]):
            assert error is not None
            with pytest.raises(
                errors.TimeoutException, match=r"t-0 were not (committed|received) in time: no broker reachable at b:1 \(refused\);"
            ):
                raise error

    def test_commit_fails_once_the_member_joins(self) -> None:
        rig, outcomes = self.committing()
        rig.find_coordinator()
        assert rig.state is State.JOINING
        assert outcomes[0] is not None
        with pytest.raises(errors.RebalanceInProgressException, match="while this consumer joins group 'g': poll, then commit again"):
            raise outcomes[0]
        assert not rig.pending(OffsetCommitRequest), "only members may commit, and it is none yet"

    @pytest.mark.parametrize("is_known", [True, False])
    def test_commit_in_on_lost_fails_at_once(self, is_known: bool) -> None:
        """Others have the partitions, whatever becomes of this member."""
        rig = Rig().reach(State.STABLE)
        rig.group.membership.reset_generation("a test")
        if not is_known:
            rig.group.finder.forget()
        callback = rig.core.next_callback(rig.steady_ms)
        assert callback is not None
        assert callback.kind == "lost"
        outcomes: list[errors.KafkaException | None] = []
        rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(1)}, rig.steady_ms + 60_000, outcomes.append, retries=True)
        assert isinstance(outcomes[0], errors.CommitFailedException)


@pytest.mark.parametrize("state", [State.JOINING, State.SYNCING])
def test_commit_while_a_cooperative_member_rejoins_fails(state: State) -> None:
    """It reads on, and what it read can be committed once it has joined."""
    rig = Rig(**{"partition.assignment.strategy": "cooperative-sticky"}).reach(State.STABLE)
    rig.group.membership.request_rejoin("a test")
    rig.poll()
    if state is State.SYNCING:
        rig.answer_join(generation=2)
    assert rig.state is state
    outcomes: list[errors.KafkaException | None] = []
    rig.group.commits.commit({TopicPartition("t", 0): OffsetAndMetadata(1)}, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.step()
    assert isinstance(outcomes[0], errors.RebalanceInProgressException)
    assert not rig.pending(OffsetCommitRequest)
