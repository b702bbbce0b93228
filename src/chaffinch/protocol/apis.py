"""Registry of Kafka APIs: key, messages, and the versions that the broker serves and the client uses."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from chaffinch.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from chaffinch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from chaffinch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from chaffinch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from chaffinch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from chaffinch.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from chaffinch.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from chaffinch.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from chaffinch.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from chaffinch.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from chaffinch.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from chaffinch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from chaffinch.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from chaffinch.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from chaffinch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from chaffinch.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from chaffinch.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.fetch import FetchRequest, FetchResponse
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from chaffinch.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from chaffinch.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from chaffinch.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from chaffinch.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from chaffinch.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from chaffinch.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from chaffinch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from chaffinch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from chaffinch.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from chaffinch.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class Api:
    """One API. `served`: versions of our broker. `used`: versions of our clients, which take the highest by default.

    `reach`: versions possible if the caller gives a maximum: newer ones if it knows topic ids, older ones for older record formats.
    """

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    served: range
    used: range
    reach: range

    def __repr__(self) -> str:
        return f"<{self.name} ({self.key})>"

    @property
    def flexible_since(self) -> int:
        """First version with compact lengths, tagged fields, request header 2 and response header 1 (KIP-482)."""
        return self.request.FLEXIBLE_SINCE


def _row(
    request: type[Message], response: type[Message], served: tuple[int, int], used: tuple[int, int], reach: tuple[int, int] | None = None
) -> Api:
    """Ranges are given as (first, last); `reach` defaults to `used`."""
    name = request.__name__.removesuffix("Request")
    ranges = [range(first, last + 1) for first, last in (served, used, reach or used)]
    return Api(request.API_KEY, name, request, response, *ranges)


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        _row(ProduceRequest, ProduceResponse, served=(0, 13), used=(3, 11), reach=(0, 13)),
        _row(FetchRequest, FetchResponse, served=(4, 18), used=(4, 12), reach=(4, 18)),
        _row(ListOffsetsRequest, ListOffsetsResponse, served=(1, 11), used=(1, 8)),
        _row(MetadataRequest, MetadataResponse, served=(0, 13), used=(4, 13)),
        _row(OffsetCommitRequest, OffsetCommitResponse, served=(2, 10), used=(2, 9), reach=(2, 10)),
        _row(OffsetFetchRequest, OffsetFetchResponse, served=(1, 10), used=(1, 9), reach=(1, 10)),
        _row(FindCoordinatorRequest, FindCoordinatorResponse, served=(0, 6), used=(1, 6)),
        _row(JoinGroupRequest, JoinGroupResponse, served=(0, 9), used=(2, 9)),
        _row(HeartbeatRequest, HeartbeatResponse, served=(0, 4), used=(0, 4)),
        _row(LeaveGroupRequest, LeaveGroupResponse, served=(0, 5), used=(0, 5)),
        _row(SyncGroupRequest, SyncGroupResponse, served=(0, 5), used=(0, 5)),
        _row(DescribeGroupsRequest, DescribeGroupsResponse, served=(0, 6), used=(0, 6)),
        _row(ListGroupsRequest, ListGroupsResponse, served=(0, 5), used=(0, 5)),
        _row(SaslHandshakeRequest, SaslHandshakeResponse, served=(1, 1), used=(1, 1)),
        _row(ApiVersionsRequest, ApiVersionsResponse, served=(0, 4), used=(0, 4)),
        _row(CreateTopicsRequest, CreateTopicsResponse, served=(2, 7), used=(2, 7)),
        _row(DeleteTopicsRequest, DeleteTopicsResponse, served=(1, 6), used=(1, 6)),
        _row(DeleteRecordsRequest, DeleteRecordsResponse, served=(0, 2), used=(0, 2)),
        _row(InitProducerIdRequest, InitProducerIdResponse, served=(0, 5), used=(0, 5)),
        _row(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, served=(0, 5), used=(0, 3)),
        _row(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, served=(0, 4), used=(0, 4)),
        _row(EndTxnRequest, EndTxnResponse, served=(0, 5), used=(0, 4), reach=(0, 5)),
        _row(WriteTxnMarkersRequest, WriteTxnMarkersResponse, served=(1, 2), used=(1, 2)),
        _row(TxnOffsetCommitRequest, TxnOffsetCommitResponse, served=(0, 6), used=(0, 4), reach=(0, 6)),
        _row(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, served=(2, 4), used=(2, 4)),
        _row(DescribeAclsRequest, DescribeAclsResponse, served=(1, 3), used=(1, 3)),
        _row(DescribeConfigsRequest, DescribeConfigsResponse, served=(1, 4), used=(1, 4)),
        _row(AlterConfigsRequest, AlterConfigsResponse, served=(0, 2), used=(0, 2)),
        _row(DescribeLogDirsRequest, DescribeLogDirsResponse, served=(1, 5), used=(1, 5)),
        _row(SaslAuthenticateRequest, SaslAuthenticateResponse, served=(0, 2), used=(0, 2)),
        _row(CreatePartitionsRequest, CreatePartitionsResponse, served=(0, 3), used=(0, 3)),
        _row(DeleteGroupsRequest, DeleteGroupsResponse, served=(0, 2), used=(0, 2)),
        _row(ElectLeadersRequest, ElectLeadersResponse, served=(0, 2), used=(0, 2)),
        _row(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, served=(0, 1), used=(0, 1)),
        _row(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, served=(0, 0), used=(0, 0)),
        _row(OffsetDeleteRequest, OffsetDeleteResponse, served=(0, 0), used=(0, 0)),
        _row(DescribeClientQuotasRequest, DescribeClientQuotasResponse, served=(0, 1), used=(0, 1)),
        _row(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, served=(0, 0), used=(0, 0)),
        _row(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, served=(0, 0), used=(0, 0)),
        _row(DescribeClusterRequest, DescribeClusterResponse, served=(0, 2), used=(0, 2)),
        _row(DescribeProducersRequest, DescribeProducersResponse, served=(0, 0), used=(0, 0)),
        _row(DescribeTransactionsRequest, DescribeTransactionsResponse, served=(0, 0), used=(0, 0)),
        _row(ListTransactionsRequest, ListTransactionsResponse, served=(0, 2), used=(0, 2)),
        _row(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, served=(0, 1), used=(0, 1)),
        _row(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, served=(0, 1), used=(0, 1)),
        _row(ListConfigResourcesRequest, ListConfigResourcesResponse, served=(0, 1), used=(0, 1)),
        _row(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, served=(0, 0), used=(0, 0)),
    )
}
"""Every API by its key."""

_BY_MESSAGE: dict[type[Message], Api] = {message: api for api in APIS.values() for message in (api.request, api.response)}


def api_of(message: Message | type[Message]) -> Api:
    """The API a request or response (or its class) belongs to; KeyError for nested structures."""
    return _BY_MESSAGE[message if isinstance(message, type) else type(message)]
