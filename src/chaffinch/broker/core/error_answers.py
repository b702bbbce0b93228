"""Answers that say nothing but an error, for fault scripts: the shape of the request, with the code wherever the API has room for one.

Produce and Fetch are not here: their handlers answer a scripted error for the partition it is meant for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaffinch.broker.core import topics_error_answers
from chaffinch.broker.core.groups import error_answers as groups_error_answers
from chaffinch.broker.core.transactions import error_answers as transaction_error_answers
from chaffinch.protocol.messages import (
    alter_user_scram_credentials,
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    sasl_authenticate,
    sasl_handshake,
    txn_offset_commit,
)
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest


def error_answer(request: ReceivedRequest, number: int) -> Message:
    """The answer of this request's API that carries `number` in every place for an error. KeyError for Produce and Fetch."""
    return _ANSWERS[request.api.name](request.message, number)


def _metadata(request: metadata.MetadataRequest, number: int) -> Message:
    topics = [metadata.MetadataResponseTopic(error_code=number, name=asked.name, topic_id=asked.topic_id) for asked in request.topics or ()]
    return metadata.MetadataResponse(topics=topics, error_code=number)


def _list_offsets(request: list_offsets.ListOffsetsRequest, number: int) -> Message:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=number)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_commit(request: offset_commit.OffsetCommitRequest, number: int) -> Message:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=number)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _txn_offset_commit(request: txn_offset_commit.TxnOffsetCommitRequest, number: int) -> Message:
    return txn_offset_commit.TxnOffsetCommitResponse(
        topics=[
            txn_offset_commit.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    txn_offset_commit.TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=number)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: offset_fetch.OffsetFetchRequest, number: int) -> Message:
    groups = [offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=number) for group in request.groups]
    topics = [  # Version 1 has room for errors of partitions only.
        offset_fetch.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                offset_fetch.OffsetFetchResponsePartition(partition_index=index, error_code=number) for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return offset_fetch.OffsetFetchResponse(error_code=number, groups=groups, topics=topics)


def _find_coordinator(request: find_coordinator.FindCoordinatorRequest, number: int) -> Message:
    coordinators = [
        find_coordinator.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=number) for key in request.coordinator_keys
    ]
    return find_coordinator.FindCoordinatorResponse(error_code=number, node_id=-1, host="", port=-1, coordinators=coordinators)


def _create_topics(request: create_topics.CreateTopicsRequest, number: int) -> Message:
    topics = [create_topics.CreatableTopicResult(name=asked.name, error_code=number, configs=None) for asked in request.topics]
    return create_topics.CreateTopicsResponse(topics=topics)


def _delete_topics(request: delete_topics.DeleteTopicsRequest, number: int) -> Message:
    names = [state.name for state in request.topics] or request.topic_names
    return delete_topics.DeleteTopicsResponse(
        responses=[delete_topics.DeletableTopicResult(name=name, error_code=number) for name in names]
    )


def _describe_configs(request: describe_configs.DescribeConfigsRequest, number: int) -> Message:
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                error_code=number, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            for resource in request.resources
        ]
    )


def _alter_configs(request: incremental_alter_configs.IncrementalAlterConfigsRequest, number: int) -> Message:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=number, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            for resource in request.resources
        ]
    )


def _alter_scram(request: alter_user_scram_credentials.AlterUserScramCredentialsRequest, number: int) -> Message:
    users = dict.fromkeys([*(change.name for change in request.deletions), *(change.name for change in request.upsertions)])
    results = [alter_user_scram_credentials.AlterUserScramCredentialsResult(user=user, error_code=number) for user in users]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=results)


_ANSWERS: Mapping[str, Callable[[Any, int], Message]] = {
    "Metadata": _metadata,
    "ListOffsets": _list_offsets,
    "OffsetCommit": _offset_commit,
    "OffsetFetch": _offset_fetch,
    "FindCoordinator": _find_coordinator,
    "ApiVersions": lambda _, number: api_versions.ApiVersionsResponse(error_code=number),
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "TxnOffsetCommit": _txn_offset_commit,
    "DescribeConfigs": _describe_configs,
    "IncrementalAlterConfigs": _alter_configs,
    "SaslHandshake": lambda _, number: sasl_handshake.SaslHandshakeResponse(error_code=number),
    "SaslAuthenticate": lambda _, number: sasl_authenticate.SaslAuthenticateResponse(error_code=number),
    "AlterUserScramCredentials": _alter_scram,
    "DescribeCluster": lambda _, number: describe_cluster.DescribeClusterResponse(error_code=number),
    **groups_error_answers.ANSWERS,
    **transaction_error_answers.ANSWERS,
    **topics_error_answers.ANSWERS,
}
