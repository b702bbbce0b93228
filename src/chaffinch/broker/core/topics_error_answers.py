"""Answers that say nothing but an error, for fault scripts: the APIs of topics and their options that are not in `error_answers.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaffinch.protocol.messages import (
    alter_configs,
    create_partitions,
    delete_records,
    describe_acls,
    describe_client_quotas,
    describe_log_dirs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    list_config_resources,
    list_partition_reassignments,
    offset_for_leader_epoch,
)
from chaffinch.protocol.schema import Message


def _delete_records(request: delete_records.DeleteRecordsRequest, number: int) -> Message:
    return delete_records.DeleteRecordsResponse(
        topics=[
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records.DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1, error_code=number)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_for_leader_epoch(request: offset_for_leader_epoch.OffsetForLeaderEpochRequest, number: int) -> Message:
    return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    offset_for_leader_epoch.EpochEndOffset(partition=asked.partition, error_code=number) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _alter_configs(request: alter_configs.AlterConfigsRequest, number: int) -> Message:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                error_code=number, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            for resource in request.resources
        ]
    )


def _create_partitions(request: create_partitions.CreatePartitionsRequest, number: int) -> Message:
    results = [create_partitions.CreatePartitionsTopicResult(name=topic.name, error_code=number) for topic in request.topics]
    return create_partitions.CreatePartitionsResponse(results=results)


def _describe_topic_partitions(request: describe_topic_partitions.DescribeTopicPartitionsRequest, number: int) -> Message:
    topics = [
        describe_topic_partitions.DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=number) for topic in request.topics
    ]
    return describe_topic_partitions.DescribeTopicPartitionsResponse(topics=topics)


def _describe_log_dirs(request: describe_log_dirs.DescribeLogDirsRequest, number: int) -> Message:
    """Before version 3 the error is that of a directory."""
    results = [describe_log_dirs.DescribeLogDirsResult(error_code=number)]
    return describe_log_dirs.DescribeLogDirsResponse(error_code=number, results=results)


def _elect_leaders(request: elect_leaders.ElectLeadersRequest, number: int) -> Message:
    results = [
        elect_leaders.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[elect_leaders.PartitionResult(partition_id=index, error_code=number) for index in topic.partitions],
        )
        for topic in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(error_code=number, replica_election_results=results)


ANSWERS: Mapping[str, Callable[[Any, int], Message]] = {
    "DeleteRecords": _delete_records,
    "OffsetForLeaderEpoch": _offset_for_leader_epoch,
    "DescribeAcls": lambda _, number: describe_acls.DescribeAclsResponse(error_code=number),
    "AlterConfigs": _alter_configs,
    "DescribeLogDirs": _describe_log_dirs,
    "CreatePartitions": _create_partitions,
    "ElectLeaders": _elect_leaders,
    "ListPartitionReassignments": lambda _, number: list_partition_reassignments.ListPartitionReassignmentsResponse(error_code=number),
    "DescribeClientQuotas": lambda _, number: describe_client_quotas.DescribeClientQuotasResponse(error_code=number, entries=None),
    "DescribeUserScramCredentials": lambda _, number: describe_user_scram_credentials.DescribeUserScramCredentialsResponse(
        error_code=number
    ),
    "ListConfigResources": lambda _, number: list_config_resources.ListConfigResourcesResponse(error_code=number),
    "DescribeTopicPartitions": _describe_topic_partitions,
}
