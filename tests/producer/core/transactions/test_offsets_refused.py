"""Offsets that a group refuses because it has gone on without the consumer: the error says whose they are, and what to do next."""

from __future__ import annotations

import pytest

from chaffinch.errors import CommitFailedException, ErrorCode, Group, codes
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
    ("code", "why"),
    [
        (codes.UNKNOWN_MEMBER_ID, "the group has gone on without this member, .*polls within max.poll.interval.ms"),
        (codes.ILLEGAL_GENERATION, "the group has gone on without this member, .*polls within max.poll.interval.ms"),
        (codes.FENCED_INSTANCE_ID, "another consumer with the same group.instance.id .*needs an id of its own"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_error_names_the_group_and_says_what_to_do(code: ErrorCode, why: str) -> None:
    rig = Rig(options={"transactional.id": "t"})
    refused = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code.number)
    rig.scripted[TxnOffsetCommitRequest] = [
        TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="input", partitions=[refused])])
    ]
    rig.call(events.InitTransactionsCalled, "init")
    rig.call(events.BeginTransactionCalled, "begin")
    rig.call(events.SendOffsetsCalled, "offsets", offsets=OFFSETS, group=GroupMetadata("counters", 3, "member"))
    error = rig.calls["offsets"]
    assert isinstance(error, CommitFailedException)
    assert (error.code, error.group, error.topic_partition) == (code, Group.APPLICATION_RECOVERABLE, TopicPartition("input", 0))
    with pytest.raises(
        CommitFailedException,
        match=rf"^the offsets of group 'counters' for input-0 and 2 more were not committed \({code.name}\): {why}; .*"
        r"calls init_transactions\(\): close this one, and start a new one$",
    ):
        raise error
    (report,) = rig.reports
    assert "group 'counters'" in report
