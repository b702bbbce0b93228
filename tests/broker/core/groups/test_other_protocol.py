"""A request of one group protocol that meets a group of the other one: the message names the protocol, and what to do."""

from __future__ import annotations

import json

import pytest

from chaffinch.broker.core.groups import group_journal
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from chaffinch.protocol.messages.describe_groups import DescribeGroupsRequest
from tests.broker.core.groups.members import GROUP, ConsumerMember, stable_group
from tests.broker.core_client import Cluster


def test_classic_group_is_named_to_a_member_of_the_consumer_protocol(cluster: Cluster) -> None:
    stable_group(cluster, 1)
    answer = ConsumerMember(cluster, "a").join()
    assert answer.error_code == 69
    assert "is not a consumer group, it uses the classic protocol" in answer.error_message
    assert "Stop all its members first, or choose another group.id" in answer.error_message
    described = cluster.client().ask(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0]
    assert (described.error_code, described.error_message) == (69, answer.error_message)


def test_consumer_group_is_named_to_describe_groups(cluster: Cluster) -> None:
    ConsumerMember(cluster, "a").join()
    described = cluster.client().ask(DescribeGroupsRequest(groups=[GROUP])).groups[0]
    assert described.error_code == 69
    assert "is not a classic group, it uses the consumer protocol (KIP-848)" in described.error_message


def test_missing_group_is_reported_as_missing(cluster: Cluster) -> None:
    client = cluster.client()
    consumer = client.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0]
    classic = client.ask(DescribeGroupsRequest(groups=[GROUP])).groups[0]
    assert consumer.error_message == f"there is no consumer group {GROUP!r}"
    assert classic.error_message == f"there is no classic group {GROUP!r}"


def test_group_of_an_unknown_type_fails_the_start(cluster: Cluster) -> None:
    fields = {"type": "share", "epoch": 1, "assignment_epoch": 1}
    cluster.core._journals["offsets"].put({group_journal.key_of(GROUP): json.dumps(fields).encode()})
    with pytest.raises(AssertionError, match="group 'g' is of an unknown type 'share'"):
        cluster.restart()
