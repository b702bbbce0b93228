"""What is told to the leaders of partitions whose coordinator forgot to tell them, and what is made of their answers."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from chaffinch.spark.commit import finish
from chaffinch.spark.commit.operations import FindRemains, LeftOpen
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Driver, outcome
from tests.spark.commit.test_protocol import ROWS, assert_exactly_once, two_batches


def test_ends_are_asked_for_so_that_transactions_keep_their_epochs():
    """From version 5 on an end raises the epoch (KIP-890): what is committed would have that below the coordinator's."""
    assert max(api_of(EndTxnRequest()).used) == 4


def test_markers_bear_the_coordinators_epochs_that_the_partitions_know():
    places = [
        LeftOpen(TopicPartition(topic, number), 3, epoch) for topic, number, epoch in [("b", 0, 2), ("a", 1, -1), ("a", 0, 2), ("a", 2, 2)]
    ]
    request = finish.markers(ProducerIdentity(7, 3), places)
    said = [(marker.coordinator_epoch, {topic.name: topic.partition_indexes for topic in marker.topics}) for marker in request.markers]
    assert said == [(0, {"a": [1]}), (2, {"a": [0, 2], "b": [0]})]
    assert {(marker.producer_id, marker.producer_epoch, marker.transaction_result) for marker in request.markers} == {(7, 3, True)}


@pytest.mark.parametrize(
    ("answered", "refused"),
    [
        ([codes.NONE, codes.NONE], codes.NONE),
        ([codes.NOT_LEADER_OR_FOLLOWER, codes.INVALID_PRODUCER_EPOCH, codes.TRANSACTION_COORDINATOR_FENCED], codes.NONE),
        ([codes.NOT_LEADER_OR_FOLLOWER, codes.CLUSTER_AUTHORIZATION_FAILED], codes.CLUSTER_AUTHORIZATION_FAILED),
        ([codes.UNKNOWN_SERVER_ERROR], codes.UNKNOWN_SERVER_ERROR),
    ],
)
def test_who_was_overtaken_looks_again_and_who_may_not_does_not(answered, refused):
    parts = [WritableTxnMarkerPartitionResult(partition_index=number, error_code=code.number) for number, code in enumerate(answered)]
    topics = [WritableTxnMarkerTopicResult(name="a", partitions=parts)]
    answer = WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)])
    assert finish.refusal_in(answer) is refused


@pytest.mark.parametrize(
    ("group_id", "number"), [("ends", 16), ("chaffinch-q", 40), ("polygenelubricants", 0), ("\u00fc\U0001f600", 21), ("", 0)]
)
def test_a_groups_offsets_are_where_java_puts_them(group_id, number):
    """As a Java machine computes `Utils.abs(groupId.hashCode()) % 50`; of one of them the hash is the smallest int."""
    assert finish.offsets_partition(group_id, 50) == number


def test_a_topic_that_is_gone_holds_the_next_batch_up_once():
    broker, query = two_batches()
    query.commit(0)
    query.state = replace(query.state, written_to=(*query.state.written_to, TopicPartition("gone", 0)))
    began_ms = broker.now_ms
    query.commit(1)
    assert 60_000 <= broker.now_ms - began_ms < 61_000
    query.commit(1)
    assert broker.now_ms - began_ms < 61_000
    assert_exactly_once(broker)


@pytest.mark.parametrize(("number", "has_checkpoint", "waits"), [(0, True, False), (1, True, True), (0, False, True)])
def test_the_leaders_where_the_last_batch_was_written_are_waited_for_and_no_others(number, has_checkpoint, waits, monkeypatch):
    """The checkpoint says where that was: in partition 1. Without one it may have been anywhere."""
    _, query = two_batches(has_checkpoint=has_checkpoint)
    target = TargetSnapshot(topics=(TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
    query.batches = [(outcome({1: ROWS[0][1]}),), (outcome({1: ROWS[1][1]}),)]
    query.commit(0, target=target)
    assert query.state.written_to == ((TopicPartition(TOPIC, 1),) if has_checkpoint else None)
    effect = Driver.effect

    def away(self, operation):
        value = effect(self, operation)
        if not isinstance(operation, FindRemains):
            return value
        return replace(value, asked=value.asked - {TopicPartition(TOPIC, number)}, reason=f"{TOPIC}-{number} has no leader")

    monkeypatch.setattr(Driver, "effect", away)
    with pytest.raises(Refusal, match=f"orders-{number} has no leader") if waits else nullcontext():
        assert query.commit(1, target=target).result.outcome == "written"
