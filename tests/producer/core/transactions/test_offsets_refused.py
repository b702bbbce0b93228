"""Offsets refused by a group that has gone on without the consumer: the error names the group and the next step."""

from __future__ import annotations

import re

import pytest

from chaffinch.errors import CommitFailedException, ErrorCode, FencedInstanceIdException, Group, KafkaException, Stored, codes
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.records import GroupMetadata
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.producer.core.rig import Rig

OFFSETS = {TopicPartition("input", partition): OffsetAndMetadata(5) for partition in (2, 0, 1)}


@pytest.mark.parametrize(
    ("code", "error_class", "why"),
    [
        (codes.UNKNOWN_MEMBER_ID, CommitFailedException, "the group has gone on without this member, .*polls within max.poll.interval.ms"),
        (codes.ILLEGAL_GENERATION, CommitFailedException, "the group has gone on without this member, .*polls within max.poll.interval.ms"),
        (codes.FENCED_INSTANCE_ID, FencedInstanceIdException, "another consumer with the same group.instance.id .*needs an id of its own"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_offsets_error_names_the_group_and_advice(code: ErrorCode, error_class: type[KafkaException], why: str) -> None:
    rig = Rig(options={"transactional.id": "t"})
    refused = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code.number)
    rig.scripted[TxnOffsetCommitRequest] = [
        TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="input", partitions=[refused])])
    ]
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("counters", 3, "member"))
    error = rig.calls["offsets"]
    assert type(error) is error_class
    assert (error.code, error.group, error.stored) == (code, Group.APPLICATION_RECOVERABLE, Stored.NO)
    assert (error.api, error.topic_partition) == ("TxnOffsetCommit", TopicPartition("input", 0))
    text = str(error)
    assert text.count(code.name) == 1
    assert re.search(rf"the offsets of group 'counters' for input-0 and 2 more were not committed.*: {why}; .*init_transactions\(\)", text)
    assert re.search("close this (one|producer),? and start a new one$", text)
    (report,) = rig.reports
    assert "group 'counters'" in report
