"""Table of broker error codes, one row per code, and the functions that look a row up.

A row has the numbers on the wire under both numberings, the exception, the KIP-1050 group for the Produce API and for the transaction APIs,
and whether a record with this error may nevertheless be in the log. How a client reacts is in `handling.py`; exceptions are built in
`exceptions.py`.

Sources: `Errors.java` (numbers and names), KIP-1050 (groups), KIP-467, KIP-135 and KIP-579 (additional rows, at the end), KIP-1050's
general strategy for unknown codes (application-recoverable).

Numbering. The KIPs printed 85, 45 and 89; Apache Kafka later gave these numbers to other errors. `apache` is safe with every client:
INVALID_RECORD and INVALID_COMPACTION_KEY are 87, INCONSISTENT_REPLICATION_FACTOR is 40 with a message that begins with its name. `kip` uses
the KIPs' numbers, in Produce responses only: no other API has these three errors, and there 85 and 89 keep Apache Kafka's meaning.

Stored, for a Produce response. `no`: the broker decides before it appends. `possibly`: the response may come after the append, or proves
nothing about it. `yes`: the batch is in the log. Cases that need an explanation:

- 6 and 56 may come after the append: with acks=all a broker that loses its leadership, or its disk, while it waits for the followers may
  send them for bytes that a follower has copied already. (3 comes only when the topic is deleted, and the bytes with it.)
- 7, 13 and 20 are the classical unknown outcomes: timed out, connection lost, appended with too few copies.
- 14, 15, 16, 51, 48 and 120 come from verifying the transaction, 19 from counting the in-sync replicas: both precede the append.
- 46 means that the batch is in the log, but its offsets are forgotten.
- -1, 8, every code that Produce never returns, and every unknown number prove nothing: `possibly`.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, Literal

from chaffinch.public_names import exported_from

Numbering = Literal["apache", "kip"]


@exported_from("chaffinch.errors")
class Group(Enum):
    """Error groups of KIP-1050; the value is the name for people. NONE: the KIP does not classify the code, a plain ApiException."""

    RETRIABLE = "Retriable"
    REFRESH_RETRIABLE = "RefreshRetriable"
    TRANSACTION_ABORTABLE = "TransactionAbortable"
    APPLICATION_RECOVERABLE = "ApplicationRecoverable"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    NONE = "None"


@exported_from("chaffinch.errors")
class Stored(Enum):
    """Whether a record with this error in a Produce response is in the log."""

    NO = "no"
    POSSIBLY = "possibly"
    YES = "yes"


@exported_from("chaffinch.errors")
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCode:
    """One row. Rows are compared by name and number; there is one object per row, also after unpickling."""

    name: str
    number: int
    number_kip: int = field(compare=False)
    exception_name: str = field(compare=False)
    group: Group = field(compare=False)
    """Group of the exception class, for any API."""
    group_produce: Group = field(compare=False)
    group_transaction: Group = field(compare=False)
    is_produce_code: bool = field(compare=False)
    """Whether Produce, or the Metadata look-up before it, can return this code."""
    is_transaction_code: bool = field(compare=False)
    stored: Stored = field(compare=False)
    text: str = field(compare=False)
    is_known: bool = field(default=True, compare=False)

    @property
    def summary(self) -> str:
        """The first sentence of the text: the error, independent of the API."""
        return self.text.partition(". ")[0].rstrip(".")

    @property
    def is_retriable(self) -> bool:
        return self.group in (Group.RETRIABLE, Group.REFRESH_RETRIABLE)

    @property
    def refreshes_metadata(self) -> bool:
        """Whether the topic's metadata must be refreshed. Codes 15 and 16 refresh the coordinator instead."""
        return self.group is Group.REFRESH_RETRIABLE and self.number not in (15, 16)

    def wire(self, numbering: Numbering) -> int:
        """The number in a response under this numbering."""
        return self.number_kip if numbering == "kip" else self.number

    def __repr__(self) -> str:
        return f"<ErrorCode {self.name} ({self.number})>"

    def __reduce__(self) -> tuple[object, ...]:
        return (by_name, (self.name,)) if self.is_known else (_unknown, (self.number,))


def _row(name: str, number: int, exception_name: str, group: Group, seen_by: str, stored: Stored, text: str, *,
         number_kip: int | None = None, group_produce: Group | None = None, group_transaction: Group | None = None) -> ErrorCode:
    """`seen_by`: P if Produce can return it, T if a transaction API can. If an API returns an unexpected code of group NONE, KIP-1050's
    general strategy applies.
    """
    unexpected = Group.APPLICATION_RECOVERABLE if group is Group.NONE else group
    return ErrorCode(
        name=name, number=number, number_kip=number if number_kip is None else number_kip, exception_name=exception_name, group=group,
        group_produce=group_produce or (group if "P" in seen_by else unexpected),
        group_transaction=group_transaction or (group if "T" in seen_by else unexpected),
        is_produce_code="P" in seen_by, is_transaction_code="T" in seen_by, stored=stored, text=text,
    )


_PLAIN, _RETRY, _REFRESH, _ABORT = Group.NONE, Group.RETRIABLE, Group.REFRESH_RETRIABLE, Group.TRANSACTION_ABORTABLE
_RESTART, _CONFIG = Group.APPLICATION_RECOVERABLE, Group.INVALID_CONFIGURATION
_NO, _MAYBE, _YES = Stored.NO, Stored.POSSIBLY, Stored.YES

UNKNOWN_SERVER_ERROR = _row("UNKNOWN_SERVER_ERROR", -1, "UnknownServerException", _RESTART, "PT", _MAYBE, "The broker failed in a way it has no code for; its own log holds the reason. The write may or may not have happened.")
NONE = _row("NONE", 0, "", _PLAIN, "", _YES, "No error.")
OFFSET_OUT_OF_RANGE = _row("OFFSET_OUT_OF_RANGE", 1, "OffsetOutOfRangeException", _PLAIN, "", _MAYBE, "The offset is outside what the partition holds: expired, compacted away, or never written. Seek to a known position or follow auto.offset.reset.")
CORRUPT_MESSAGE = _row("CORRUPT_MESSAGE", 2, "CorruptRecordException", _RETRY, "PT", _NO, "The batch's checksum or header is wrong: bytes were damaged between client and disk. The same bytes are sent again; if it persists, suspect memory or a proxy.")
UNKNOWN_TOPIC_OR_PARTITION = _row("UNKNOWN_TOPIC_OR_PARTITION", 3, "UnknownTopicOrPartitionException", _REFRESH, "PT", _NO, "The broker does not have this topic or partition: misspelt, not created yet, deleted, or hidden by a missing Describe permission.")
INVALID_FETCH_SIZE = _row("INVALID_FETCH_SIZE", 4, "InvalidFetchSizeException", _PLAIN, "", _MAYBE, "The fetch size is negative or not usable. Set fetch.max.bytes and max.partition.fetch.bytes above 0.")
LEADER_NOT_AVAILABLE = _row("LEADER_NOT_AVAILABLE", 5, "LeaderNotAvailableException", _REFRESH, "PT", _NO, "The partition has no leader right now: an election is running, or every replica is down.")
NOT_LEADER_OR_FOLLOWER = _row("NOT_LEADER_OR_FOLLOWER", 6, "NotLeaderOrFollowerException", _REFRESH, "PT", _MAYBE, "The broker is no longer the partition's leader. With acks=all the batch may already be on the new leader.")
REQUEST_TIMED_OUT = _row("REQUEST_TIMED_OUT", 7, "TimeoutException", _RETRY, "PT", _MAYBE, "The response did not come in time: overloaded brokers, slow followers, or a network failure. The write may have happened.")
BROKER_NOT_AVAILABLE = _row("BROKER_NOT_AVAILABLE", 8, "BrokerNotAvailableException", _RESTART, "P", _MAYBE, "The broker is not running or not reachable (a code of old brokers). Check that it is up.")
REPLICA_NOT_AVAILABLE = _row("REPLICA_NOT_AVAILABLE", 9, "ReplicaNotAvailableException", _REFRESH, "P", _MAYBE, "The requested replica is not on this broker at the moment.")
MESSAGE_TOO_LARGE = _row("MESSAGE_TOO_LARGE", 10, "RecordTooLargeException", _CONFIG, "P", _NO, "A record, or the batch it is in, is larger than the topic's max.message.bytes. Make it smaller, compress it, or raise the limit.")
STALE_CONTROLLER_EPOCH = _row("STALE_CONTROLLER_EPOCH", 11, "ControllerMovedException", _PLAIN, "", _MAYBE, "The request comes from a controller that was replaced. Between brokers only.")
OFFSET_METADATA_TOO_LARGE = _row("OFFSET_METADATA_TOO_LARGE", 12, "OffsetMetadataTooLarge", _RESTART, "T", _MAYBE, "The metadata text of a committed offset is longer than the broker's offset.metadata.max.bytes.")
NETWORK_EXCEPTION = _row("NETWORK_EXCEPTION", 13, "NetworkException", _REFRESH, "PT", _MAYBE, "The connection was lost before the response came. The write may have happened.")
COORDINATOR_LOAD_IN_PROGRESS = _row("COORDINATOR_LOAD_IN_PROGRESS", 14, "CoordinatorLoadInProgressException", _RETRY, "PT", _NO, "The coordinator is reading its state after a move or a restart and cannot answer yet.")
COORDINATOR_NOT_AVAILABLE = _row("COORDINATOR_NOT_AVAILABLE", 15, "CoordinatorNotAvailableException", _REFRESH, "PT", _NO, "There is no coordinator yet: its internal topic is being created or has no leader.")
NOT_COORDINATOR = _row("NOT_COORDINATOR", 16, "NotCoordinatorException", _REFRESH, "PT", _NO, "The broker is no longer the coordinator; the client looks it up again.")
INVALID_TOPIC_EXCEPTION = _row("INVALID_TOPIC_EXCEPTION", 17, "InvalidTopicException", _CONFIG, "PT", _NO, "The topic name is invalid, or it is an internal topic that clients must not write to. Allowed: letters, digits, '.', '_', '-', at most 249.")
RECORD_LIST_TOO_LARGE = _row("RECORD_LIST_TOO_LARGE", 18, "RecordBatchTooLargeException", _CONFIG, "PT", _NO, "The batch is larger than the topic's segment.bytes and fits into no segment. Send smaller batches or raise segment.bytes.")
NOT_ENOUGH_REPLICAS = _row("NOT_ENOUGH_REPLICAS", 19, "NotEnoughReplicasException", _RETRY, "PT", _NO, "Fewer replicas are in sync than min.insync.replicas requires for acks=all; nothing was appended. Bring the missing brokers back.")
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _row("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 20, "NotEnoughReplicasAfterAppendException", _RETRY, "PT", _MAYBE, "The leader appended the batch, but too few replicas have it. It may or may not survive; without idempotence a retry may write it twice.")
INVALID_REQUIRED_ACKS = _row("INVALID_REQUIRED_ACKS", 21, "InvalidRequiredAcksException", _CONFIG, "PT", _NO, "acks must be all (-1), 1 or 0.")
ILLEGAL_GENERATION = _row("ILLEGAL_GENERATION", 22, "IllegalGenerationException", _RESTART, "T", _MAYBE, "The consumer's generation is over: the group has since rebalanced. Its offsets belong to another member now.")
INCONSISTENT_GROUP_PROTOCOL = _row("INCONSISTENT_GROUP_PROTOCOL", 23, "InconsistentGroupProtocolException", _PLAIN, "", _MAYBE, "The member's protocol type or assignors do not match those of the group. Give every member a common partition.assignment.strategy.")
INVALID_GROUP_ID = _row("INVALID_GROUP_ID", 24, "InvalidGroupIdException", _RESTART, "T", _MAYBE, "The group id is empty or invalid. Set group.id.")
UNKNOWN_MEMBER_ID = _row("UNKNOWN_MEMBER_ID", 25, "UnknownMemberIdException", _RESTART, "T", _MAYBE, "The coordinator does not know this group member: it was removed, or it never joined.")
INVALID_SESSION_TIMEOUT = _row("INVALID_SESSION_TIMEOUT", 26, "InvalidSessionTimeoutException", _PLAIN, "", _MAYBE, "session.timeout.ms is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.")
REBALANCE_IN_PROGRESS = _row("REBALANCE_IN_PROGRESS", 27, "RebalanceInProgressException", _PLAIN, "", _MAYBE, "The group is rebalancing; the member has to join again first.")
INVALID_COMMIT_OFFSET_SIZE = _row("INVALID_COMMIT_OFFSET_SIZE", 28, "InvalidCommitOffsetSizeException", _RESTART, "T", _MAYBE, "The offset commit is larger than a record of the offsets topic may be. Commit fewer partitions or shorter metadata at a time.")
TOPIC_AUTHORIZATION_FAILED = _row("TOPIC_AUTHORIZATION_FAILED", 29, "TopicAuthorizationException", _CONFIG, "PT", _NO, "The principal may not do this with the topic. Grant Write (to produce) or Read (to fetch), and Describe.")
GROUP_AUTHORIZATION_FAILED = _row("GROUP_AUTHORIZATION_FAILED", 30, "GroupAuthorizationException", _CONFIG, "T", _MAYBE, "The principal may not use this consumer group. Grant Read on the group.")
CLUSTER_AUTHORIZATION_FAILED = _row("CLUSTER_AUTHORIZATION_FAILED", 31, "ClusterAuthorizationException", _CONFIG, "PT", _NO, "The principal may not do this on the cluster; idempotent writes to brokers before 2.8 need IdempotentWrite.")
INVALID_TIMESTAMP = _row("INVALID_TIMESTAMP", 32, "InvalidTimestampException", _CONFIG, "P", _NO, "A record's timestamp is further from the broker's clock than message.timestamp.before.max.ms or message.timestamp.after.max.ms allows.")
UNSUPPORTED_SASL_MECHANISM = _row("UNSUPPORTED_SASL_MECHANISM", 33, "UnsupportedSaslMechanismException", _CONFIG, "PT", _NO, "The broker does not offer this SASL mechanism on this listener. Compare sasl.mechanism with the broker's sasl.enabled.mechanisms.")
ILLEGAL_SASL_STATE = _row("ILLEGAL_SASL_STATE", 34, "IllegalSaslStateException", _CONFIG, "PT", _NO, "A request came out of turn during authentication: often a plain client on a SASL listener, or the reverse. Check security.protocol.")
UNSUPPORTED_VERSION = _row("UNSUPPORTED_VERSION", 35, "UnsupportedVersionException", _CONFIG, "PT", _NO, "The broker does not know this version of the request. Client and broker are too far apart: upgrade the older one.")
TOPIC_ALREADY_EXISTS = _row("TOPIC_ALREADY_EXISTS", 36, "TopicExistsException", _PLAIN, "", _MAYBE, "A topic of this name exists already.")
INVALID_PARTITIONS = _row("INVALID_PARTITIONS", 37, "InvalidPartitionsException", _PLAIN, "", _MAYBE, "The partition count is not usable: below 1, or not above the current count when partitions are added.")
INVALID_REPLICATION_FACTOR = _row("INVALID_REPLICATION_FACTOR", 38, "InvalidReplicationFactorException", _CONFIG, "P", _NO, "The replication factor is below 1 or above the number of brokers.")
INVALID_REPLICA_ASSIGNMENT = _row("INVALID_REPLICA_ASSIGNMENT", 39, "InvalidReplicaAssignmentException", _PLAIN, "", _MAYBE, "The replica assignment is not usable: unknown or repeated brokers, or lists of different length.")
INVALID_CONFIG = _row("INVALID_CONFIG", 40, "InvalidConfigurationException", _CONFIG, "P", _NO, "A configuration value is invalid; the broker's message names it.")
NOT_CONTROLLER = _row("NOT_CONTROLLER", 41, "NotControllerException", _RETRY, "", _MAYBE, "The broker is no longer the controller; send the request to the one that the metadata names.")
INVALID_REQUEST = _row("INVALID_REQUEST", 42, "InvalidRequestException", _RESTART, "PT", _NO, "The broker found the request itself malformed. To Produce before version 8 it also stands for a record that failed validation.")
UNSUPPORTED_FOR_MESSAGE_FORMAT = _row("UNSUPPORTED_FOR_MESSAGE_FORMAT", 43, "UnsupportedForMessageFormatException", _CONFIG, "PT", _NO, "The topic's message format (below 0.11) has no room for idempotent or transactional batches. Raise message.format.version.")
POLICY_VIOLATION = _row("POLICY_VIOLATION", 44, "PolicyViolationException", _RESTART, "P", _NO, "The request breaks a policy that the broker's operator installed; the message says which.")
OUT_OF_ORDER_SEQUENCE_NUMBER = _row("OUT_OF_ORDER_SEQUENCE_NUMBER", 45, "OutOfOrderSequenceException", _PLAIN, "P", _NO, "The batch's sequence does not follow the last one the broker stored for this producer: an earlier batch is missing there.")
DUPLICATE_SEQUENCE_NUMBER = _row("DUPLICATE_SEQUENCE_NUMBER", 46, "DuplicateSequenceException", _PLAIN, "P", _YES, "The batch is stored already, but so long ago that its offsets are forgotten.")
INVALID_PRODUCER_EPOCH = _row("INVALID_PRODUCER_EPOCH", 47, "InvalidProducerEpochException", _RESTART, "PT", _NO, "A producer with a newer epoch has taken over, or the coordinator ended a transaction that timed out. Close this producer and start a new one.")
INVALID_TXN_STATE = _row("INVALID_TXN_STATE", 48, "InvalidTxnStateException", _PLAIN, "PT", _NO, "The transaction is not in a state that allows this; on Produce: the partition is not part of the transaction, mostly after a time-out.", group_produce=_ABORT, group_transaction=_RESTART)
INVALID_PRODUCER_ID_MAPPING = _row("INVALID_PRODUCER_ID_MAPPING", 49, "InvalidPidMappingException", _RESTART, "PT", _NO, "The coordinator has no such producer id for the transactional id: it expired after transactional.id.expiration.ms. Start a new producer.")
INVALID_TRANSACTION_TIMEOUT = _row("INVALID_TRANSACTION_TIMEOUT", 50, "InvalidTxnTimeoutException", _CONFIG, "T", _MAYBE, "transaction.timeout.ms is not above 0, or exceeds the broker's transaction.max.timeout.ms.")
CONCURRENT_TRANSACTIONS = _row("CONCURRENT_TRANSACTIONS", 51, "ConcurrentTransactionsException", _RETRY, "PT", _NO, "The coordinator is still completing the previous transaction of this transactional id. It passes within moments.")
TRANSACTION_COORDINATOR_FENCED = _row("TRANSACTION_COORDINATOR_FENCED", 52, "TransactionCoordinatorFencedException", _PLAIN, "", _MAYBE, "A marker came from a transaction coordinator that was replaced. Between brokers only.")
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _row("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 53, "TransactionalIdAuthorizationException", _CONFIG, "PT", _NO, "The principal may not use this transactional id. Grant Write and Describe on it.")
SECURITY_DISABLED = _row("SECURITY_DISABLED", 54, "SecurityDisabledException", _PLAIN, "", _MAYBE, "The broker has no authorizer, so there are no access rules to list or change.")
OPERATION_NOT_ATTEMPTED = _row("OPERATION_NOT_ATTEMPTED", 55, "OperationNotAttemptedException", _ABORT, "T", _MAYBE, "Nothing was done for this partition because another one in the same request failed; its error says why.")
KAFKA_STORAGE_ERROR = _row("KAFKA_STORAGE_ERROR", 56, "KafkaStorageException", _REFRESH, "PT", _MAYBE, "The broker's disk for this partition failed; the last writes may or may not be kept. Another replica takes over; replace the disk.")
LOG_DIR_NOT_FOUND = _row("LOG_DIR_NOT_FOUND", 57, "LogDirNotFoundException", _PLAIN, "", _MAYBE, "The log directory named does not exist on the broker, or its disk is offline.")
SASL_AUTHENTICATION_FAILED = _row("SASL_AUTHENTICATION_FAILED", 58, "SaslAuthenticationException", _CONFIG, "PT", _NO, "User name, password or token was refused. Check the credentials and that the mechanism fits them.")
UNKNOWN_PRODUCER_ID = _row("UNKNOWN_PRODUCER_ID", 59, "UnknownProducerIdException", _PLAIN, "PT", _NO, "The broker has forgotten this producer: its records expired, or it wrote nothing for producer.id.expiration.ms.")
REASSIGNMENT_IN_PROGRESS = _row("REASSIGNMENT_IN_PROGRESS", 60, "ReassignmentInProgressException", _PLAIN, "", _MAYBE, "Replicas of the partition are being moved already. Wait for it, or cancel that move.")
DELEGATION_TOKEN_AUTH_DISABLED = _row("DELEGATION_TOKEN_AUTH_DISABLED", 61, "DelegationTokenDisabledException", _PLAIN, "", _MAYBE, "Delegation tokens are switched off on this broker: it has no delegation.token.secret.key.")
DELEGATION_TOKEN_NOT_FOUND = _row("DELEGATION_TOKEN_NOT_FOUND", 62, "DelegationTokenNotFoundException", _PLAIN, "", _MAYBE, "The broker does not know this delegation token.")
DELEGATION_TOKEN_OWNER_MISMATCH = _row("DELEGATION_TOKEN_OWNER_MISMATCH", 63, "DelegationTokenOwnerMismatchException", _PLAIN, "", _MAYBE, "Only the token's owner or renewers may do this.")
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _row("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", 64, "UnsupportedByAuthenticationException", _PLAIN, "", _MAYBE, "Delegation token requests need a TLS or SASL connection that was not itself authenticated by a token.")
DELEGATION_TOKEN_AUTHORIZATION_FAILED = _row("DELEGATION_TOKEN_AUTHORIZATION_FAILED", 65, "DelegationTokenAuthorizationException", _CONFIG, "PT", _NO, "The principal may not do this with the delegation token.")
DELEGATION_TOKEN_EXPIRED = _row("DELEGATION_TOKEN_EXPIRED", 66, "DelegationTokenExpiredException", _PLAIN, "", _MAYBE, "The delegation token has expired. Get a new one.")
INVALID_PRINCIPAL_TYPE = _row("INVALID_PRINCIPAL_TYPE", 67, "InvalidPrincipalTypeException", _PLAIN, "", _MAYBE, "The principal type is not one the broker supports here.")
NON_EMPTY_GROUP = _row("NON_EMPTY_GROUP", 68, "GroupNotEmptyException", _PLAIN, "", _MAYBE, "The group still has members. Stop its consumers first.")
GROUP_ID_NOT_FOUND = _row("GROUP_ID_NOT_FOUND", 69, "GroupIdNotFoundException", _RESTART, "T", _MAYBE, "There is no group of this id, or its members and offsets have expired.")
FETCH_SESSION_ID_NOT_FOUND = _row("FETCH_SESSION_ID_NOT_FOUND", 70, "FetchSessionIdNotFoundException", _RETRY, "", _MAYBE, "The broker has dropped this fetch session to make room; the client starts a new one.")
INVALID_FETCH_SESSION_EPOCH = _row("INVALID_FETCH_SESSION_EPOCH", 71, "InvalidFetchSessionEpochException", _RETRY, "", _MAYBE, "Client and broker disagree about the fetch session's epoch; the client starts a new one.")
LISTENER_NOT_FOUND = _row("LISTENER_NOT_FOUND", 72, "ListenerNotFoundException", _REFRESH, "P", _NO, "The leader has no listener of the name the client uses. Give every broker the same listener names.")
TOPIC_DELETION_DISABLED = _row("TOPIC_DELETION_DISABLED", 73, "TopicDeletionDisabledException", _PLAIN, "", _MAYBE, "The broker does not delete topics: delete.topic.enable is false.")
FENCED_LEADER_EPOCH = _row("FENCED_LEADER_EPOCH", 74, "FencedLeaderEpochException", _REFRESH, "P", _NO, "The client's leader epoch is older than the broker's: its metadata is out of date.")
UNKNOWN_LEADER_EPOCH = _row("UNKNOWN_LEADER_EPOCH", 75, "UnknownLeaderEpochException", _RETRY, "P", _NO, "The client's leader epoch is newer than the broker's: the broker has yet to learn of the election.")
UNSUPPORTED_COMPRESSION_TYPE = _row("UNSUPPORTED_COMPRESSION_TYPE", 76, "UnsupportedCompressionTypeException", _CONFIG, "P", _NO, "The compression codec is not known to the broker or to this version of the request (zstd needs Produce 7). Choose another compression.type.")
STALE_BROKER_EPOCH = _row("STALE_BROKER_EPOCH", 77, "StaleBrokerEpochException", _PLAIN, "", _MAYBE, "The request carries a broker epoch from before a restart. Between brokers only.")
OFFSET_NOT_AVAILABLE = _row("OFFSET_NOT_AVAILABLE", 78, "OffsetNotAvailableException", _RETRY, "", _MAYBE, "The new leader cannot name this offset yet: its high watermark is still behind. It passes within moments.")
MEMBER_ID_REQUIRED = _row("MEMBER_ID_REQUIRED", 79, "MemberIdRequiredException", _PLAIN, "", _MAYBE, "The member has to join again with the id the coordinator has just given it.")
PREFERRED_LEADER_NOT_AVAILABLE = _row("PREFERRED_LEADER_NOT_AVAILABLE", 80, "PreferredLeaderNotAvailableException", _REFRESH, "", _MAYBE, "The preferred leader is down or not in sync, so it cannot be elected.")
GROUP_MAX_SIZE_REACHED = _row("GROUP_MAX_SIZE_REACHED", 81, "GroupMaxSizeReachedException", _PLAIN, "", _MAYBE, "The group has group.max.size members already.")
FENCED_INSTANCE_ID = _row("FENCED_INSTANCE_ID", 82, "FencedInstanceIdException", _RESTART, "T", _MAYBE, "Another consumer with the same group.instance.id has taken this one's place. Give each running consumer an id of its own.")
ELIGIBLE_LEADERS_NOT_AVAILABLE = _row("ELIGIBLE_LEADERS_NOT_AVAILABLE", 83, "EligibleLeadersNotAvailableException", _REFRESH, "", _MAYBE, "No replica that may become leader is up.")
ELECTION_NOT_NEEDED = _row("ELECTION_NOT_NEEDED", 84, "ElectionNotNeededException", _REFRESH, "", _MAYBE, "The partition has the wanted leader already.")
NO_REASSIGNMENT_IN_PROGRESS = _row("NO_REASSIGNMENT_IN_PROGRESS", 85, "NoReassignmentInProgressException", _PLAIN, "", _MAYBE, "No replicas of the partition are being moved.")
GROUP_SUBSCRIBED_TO_TOPIC = _row("GROUP_SUBSCRIBED_TO_TOPIC", 86, "GroupSubscribedToTopicException", _PLAIN, "", _MAYBE, "A member of the group still subscribes to the topic, so its offsets cannot be deleted.")
INVALID_RECORD = _row("INVALID_RECORD", 87, "InvalidRecordException", _CONFIG, "PT", _NO, "One or more records failed the broker's validation; the message of each says why. The other records of the batch are not at fault.", number_kip=85)
UNSTABLE_OFFSET_COMMIT = _row("UNSTABLE_OFFSET_COMMIT", 88, "UnstableOffsetCommitException", _RETRY, "", _MAYBE, "An open transaction has offsets of this partition pending; request them again when it has ended.")
THROTTLING_QUOTA_EXCEEDED = _row("THROTTLING_QUOTA_EXCEEDED", 89, "ThrottlingQuotaExceededException", _RETRY, "", _MAYBE, "Topic or partition changes exceed the quota controller_mutation_rate. Try again after the throttle time in the response.")
PRODUCER_FENCED = _row("PRODUCER_FENCED", 90, "ProducerFencedException", _RESTART, "PT", _NO, "Another producer with the same transactional.id has taken over. Close this one; if both should live, give each an id of its own.")
RESOURCE_NOT_FOUND = _row("RESOURCE_NOT_FOUND", 91, "ResourceNotFoundException", _PLAIN, "", _MAYBE, "The resource named does not exist.")
DUPLICATE_RESOURCE = _row("DUPLICATE_RESOURCE", 92, "DuplicateResourceException", _PLAIN, "", _MAYBE, "The request names the same resource twice, or one that exists already.")
UNACCEPTABLE_CREDENTIAL = _row("UNACCEPTABLE_CREDENTIAL", 93, "UnacceptableCredentialException", _PLAIN, "", _MAYBE, "The credential cannot be stored: empty name, unknown mechanism, or an iteration count out of range.")
INCONSISTENT_VOTER_SET = _row("INCONSISTENT_VOTER_SET", 94, "InconsistentVoterSetException", _PLAIN, "", _MAYBE, "The receiver disagrees about who votes in the metadata quorum. Between controllers only; compare controller.quorum settings.")
INVALID_UPDATE_VERSION = _row("INVALID_UPDATE_VERSION", 95, "InvalidUpdateVersionException", _PLAIN, "", _MAYBE, "The partition state sent is not newer than the one known. Between brokers only.")
FEATURE_UPDATE_FAILED = _row("FEATURE_UPDATE_FAILED", 96, "FeatureUpdateFailedException", _PLAIN, "", _MAYBE, "A feature cannot be changed to this level; the message names it.")
PRINCIPAL_DESERIALIZATION_FAILURE = _row("PRINCIPAL_DESERIALIZATION_FAILURE", 97, "PrincipalDeserializationException", _PLAIN, "", _MAYBE, "A forwarded request carries a principal that cannot be read. Between brokers only; compare principal builders.")
SNAPSHOT_NOT_FOUND = _row("SNAPSHOT_NOT_FOUND", 98, "SnapshotNotFoundException", _PLAIN, "", _MAYBE, "The requested metadata snapshot is gone. Between controllers only.")
POSITION_OUT_OF_RANGE = _row("POSITION_OUT_OF_RANGE", 99, "PositionOutOfRangeException", _PLAIN, "", _MAYBE, "The requested position is outside the metadata snapshot. Between controllers only.")
UNKNOWN_TOPIC_ID = _row("UNKNOWN_TOPIC_ID", 100, "UnknownTopicIdException", _REFRESH, "P", _NO, "No topic has this id here: deleted and created again, or the broker has yet to learn of it.")
DUPLICATE_BROKER_REGISTRATION = _row("DUPLICATE_BROKER_REGISTRATION", 101, "DuplicateBrokerRegistrationException", _PLAIN, "", _MAYBE, "Another running broker has this broker id. Give each broker its own node.id.")
BROKER_ID_NOT_REGISTERED = _row("BROKER_ID_NOT_REGISTERED", 102, "BrokerIdNotRegisteredException", _PLAIN, "", _MAYBE, "No broker with this id is registered.")
INCONSISTENT_TOPIC_ID = _row("INCONSISTENT_TOPIC_ID", 103, "InconsistentTopicIdException", _REFRESH, "P", _NO, "The topic's id in the log differs from the requested one: it was deleted and created again.")
INCONSISTENT_CLUSTER_ID = _row("INCONSISTENT_CLUSTER_ID", 104, "InconsistentClusterIdException", _PLAIN, "", _MAYBE, "The request belongs to another cluster. Compare cluster ids and addresses.")
TRANSACTIONAL_ID_NOT_FOUND = _row("TRANSACTIONAL_ID_NOT_FOUND", 105, "TransactionalIdNotFoundException", _PLAIN, "", _MAYBE, "The coordinator knows no such transactional id.")
FETCH_SESSION_TOPIC_ID_ERROR = _row("FETCH_SESSION_TOPIC_ID_ERROR", 106, "FetchSessionTopicIdException", _RETRY, "", _MAYBE, "The fetch session mixes topic names and topic ids; the client starts a new one.")
INELIGIBLE_REPLICA = _row("INELIGIBLE_REPLICA", 107, "IneligibleReplicaException", _PLAIN, "", _MAYBE, "The replica is not fit for the in-sync set: down, fenced or shutting down. Between brokers only.")
NEW_LEADER_ELECTED = _row("NEW_LEADER_ELECTED", 108, "NewLeaderElectedException", _PLAIN, "", _MAYBE, "A new leader was elected while the request was under way. Between brokers only.")
OFFSET_MOVED_TO_TIERED_STORAGE = _row("OFFSET_MOVED_TO_TIERED_STORAGE", 109, "OffsetMovedToTieredStorageException", _PLAIN, "", _MAYBE, "The requested records have moved to tiered storage, so a follower cannot copy them from here. Between brokers only.")
FENCED_MEMBER_EPOCH = _row("FENCED_MEMBER_EPOCH", 110, "FencedMemberEpochException", _PLAIN, "", _MAYBE, "The coordinator has removed the member or moved it to a newer epoch; it has to join again.")
UNRELEASED_INSTANCE_ID = _row("UNRELEASED_INSTANCE_ID", 111, "UnreleasedInstanceIdException", _PLAIN, "", _MAYBE, "The group.instance.id still belongs to another member. Stop that one, or wait until its session ends.")
UNSUPPORTED_ASSIGNOR = _row("UNSUPPORTED_ASSIGNOR", 112, "UnsupportedAssignorException", _PLAIN, "", _MAYBE, "The group's coordinator does not have the requested assignor. Choose another group.remote.assignor.")
STALE_MEMBER_EPOCH = _row("STALE_MEMBER_EPOCH", 113, "StaleMemberEpochException", _RESTART, "T", _MAYBE, "The member's epoch is behind: it has to take up its new assignment first.")
MISMATCHED_ENDPOINT_TYPE = _row("MISMATCHED_ENDPOINT_TYPE", 114, "MismatchedEndpointTypeException", _PLAIN, "", _MAYBE, "The request went to the wrong kind of endpoint: a controller in place of a broker, or the reverse. Check the bootstrap address.")
UNSUPPORTED_ENDPOINT_TYPE = _row("UNSUPPORTED_ENDPOINT_TYPE", 115, "UnsupportedEndpointTypeException", _PLAIN, "", _MAYBE, "The requested endpoint type is not known here.")
UNKNOWN_CONTROLLER_ID = _row("UNKNOWN_CONTROLLER_ID", 116, "UnknownControllerIdException", _PLAIN, "", _MAYBE, "The quorum does not know this controller id.")
UNKNOWN_SUBSCRIPTION_ID = _row("UNKNOWN_SUBSCRIPTION_ID", 117, "UnknownSubscriptionIdException", _PLAIN, "", _MAYBE, "The broker does not know the telemetry subscription; the client requests a new one.")
TELEMETRY_TOO_LARGE = _row("TELEMETRY_TOO_LARGE", 118, "TelemetryTooLargeException", _PLAIN, "", _MAYBE, "The telemetry is larger than the broker's telemetry.max.bytes.")
INVALID_REGISTRATION = _row("INVALID_REGISTRATION", 119, "InvalidRegistrationException", _PLAIN, "", _MAYBE, "The controller refuses the broker's registration; the message says why. Between brokers only.")
TRANSACTION_ABORTABLE = _row("TRANSACTION_ABORTABLE", 120, "TransactionAbortableException", _ABORT, "PT", _NO, "The coordinator cannot be sure of this transaction any more. Abort it and begin another; the producer stays usable.")
INVALID_RECORD_STATE = _row("INVALID_RECORD_STATE", 121, "InvalidRecordStateException", _PLAIN, "", _MAYBE, "The share group's record is not acquired by this member, or was acknowledged already.")
SHARE_SESSION_NOT_FOUND = _row("SHARE_SESSION_NOT_FOUND", 122, "ShareSessionNotFoundException", _RETRY, "", _MAYBE, "The broker has dropped this share session; the client starts a new one.")
INVALID_SHARE_SESSION_EPOCH = _row("INVALID_SHARE_SESSION_EPOCH", 123, "InvalidShareSessionEpochException", _RETRY, "", _MAYBE, "Client and broker disagree about the share session's epoch; the client starts a new one.")
FENCED_STATE_EPOCH = _row("FENCED_STATE_EPOCH", 124, "FencedStateEpochException", _PLAIN, "", _MAYBE, "The state epoch of the share partition is out of date.")
INVALID_VOTER_KEY = _row("INVALID_VOTER_KEY", 125, "InvalidVoterKeyException", _PLAIN, "", _MAYBE, "The voter's directory id does not match the one known to the quorum.")
DUPLICATE_VOTER = _row("DUPLICATE_VOTER", 126, "DuplicateVoterException", _PLAIN, "", _MAYBE, "The voter is in the quorum's voter set already.")
VOTER_NOT_FOUND = _row("VOTER_NOT_FOUND", 127, "VoterNotFoundException", _PLAIN, "", _MAYBE, "The voter is not in the quorum's voter set.")
INVALID_REGULAR_EXPRESSION = _row("INVALID_REGULAR_EXPRESSION", 128, "InvalidRegularExpression", _PLAIN, "", _MAYBE, "The subscription's regular expression cannot be read. The broker takes RE2 syntax.")
REBOOTSTRAP_REQUIRED = _row("REBOOTSTRAP_REQUIRED", 129, "RebootstrapRequiredException", _PLAIN, "", _MAYBE, "The client has to forget what it knows of the cluster and begin again at bootstrap.servers.")
STREAMS_INVALID_TOPOLOGY = _row("STREAMS_INVALID_TOPOLOGY", 130, "StreamsInvalidTopologyException", _PLAIN, "", _MAYBE, "The Streams topology cannot be used with the topics that exist; the message says why.")
STREAMS_INVALID_TOPOLOGY_EPOCH = _row("STREAMS_INVALID_TOPOLOGY_EPOCH", 131, "StreamsInvalidTopologyEpochException", _PLAIN, "", _MAYBE, "The Streams topology's epoch does not fit the group's.")
STREAMS_TOPOLOGY_FENCED = _row("STREAMS_TOPOLOGY_FENCED", 132, "StreamsTopologyFencedException", _PLAIN, "", _MAYBE, "The member runs another Streams topology than its group.")
SHARE_SESSION_LIMIT_REACHED = _row("SHARE_SESSION_LIMIT_REACHED", 133, "ShareSessionLimitReachedException", _RETRY, "", _MAYBE, "The broker has no room for another share session now.")
# Errors of the KIPs without their own number in Apache Kafka.
INVALID_COMPACTION_KEY = _row("INVALID_COMPACTION_KEY", 87, "InvalidCompactionKeyException", _CONFIG, "PT", _NO, "A record without a key was sent to a topic with cleanup.policy=compact, which keeps the latest record per key. Give it a key.", number_kip=45)
INCONSISTENT_REPLICATION_FACTOR = _row("INCONSISTENT_REPLICATION_FACTOR", 40, "InconsistentReplicationFactorException", _CONFIG, "PT", _NO, "The topic's min.insync.replicas exceeds its replication factor, so acks=all can never be met. Lower the one or raise the other.", number_kip=89)

# fmt: on

ALL: Final[tuple[ErrorCode, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, ErrorCode))
# KIP-579 uses two names for its error; both are accepted, the first one is used here.
ALIASES: Final = {"INCONSISTENT_REPLICA_CONFIGURATION": "INCONSISTENT_REPLICATION_FACTOR"}
# Unknown numbers come from the wire (int16); at most this many rows are cached for them.
UNKNOWN_ROWS_MAX: Final = 1024

_BY_NAME: Final = {code.name: code for code in ALL}
# The first row of a number wins. Rows that share a number (87, 40) are distinguished by the response.
_BY_NUMBER: Final = {code.number: code for code in reversed(ALL)}
_BY_NUMBER_KIP: Final = {85: INVALID_RECORD, 89: INCONSISTENT_REPLICATION_FACTOR}


def by_number(number: int, numbering: Numbering = "apache", *, has_culprits: bool = False, message: str | None = None) -> ErrorCode:
    """The row of a number from a response. An unknown number gets a row of its own.

    Args:
        number: the error code in the response.
        numbering: the broker's numbering: `apache`, or `kip` for the numbers printed in the KIPs.
        has_culprits: whether the response lists records (KIP-467's `record_errors`); under `kip` this makes 45 INVALID_COMPACTION_KEY.
        message: the response's `error_message`; under `apache` it makes 40 INCONSISTENT_REPLICATION_FACTOR if it begins with that name.

    Returns:
        The row. The producer, which knows the record's key, recognises INVALID_COMPACTION_KEY under 87.
    """
    if numbering == "kip":
        if number in _BY_NUMBER_KIP:
            return _BY_NUMBER_KIP[number]
        if number == INVALID_COMPACTION_KEY.number_kip and has_culprits:
            return INVALID_COMPACTION_KEY
    if number == INCONSISTENT_REPLICATION_FACTOR.number and message and message.startswith(INCONSISTENT_REPLICATION_FACTOR.name):
        return INCONSISTENT_REPLICATION_FACTOR
    return _BY_NUMBER.get(number) or _unknown(number)


def by_name(name: str) -> ErrorCode:
    """The row of a name or an alias.

    Args:
        name: name of the code, such as `INVALID_RECORD`.

    Raises:
        KeyError: no code has this name; the text contains the most similar one.
    """
    code = _BY_NAME.get(ALIASES.get(name, name))
    if code is None:
        raise KeyError(f"no error code is named {name!r}; the nearest is {nearest_names(name)[0]}")
    return code


def nearest_names(text: str, count_max: int = 1) -> list[str]:
    """The known names most similar to a text.

    Args:
        text: the text, in any case.
        count_max: maximum number of names.

    Returns:
        The names, best first; at least one.
    """
    return difflib.get_close_matches(text.upper(), [*_BY_NAME, *ALIASES], n=count_max, cutoff=0.0)


@lru_cache(maxsize=UNKNOWN_ROWS_MAX)
def _unknown(number: int) -> ErrorCode:
    """A row for an unknown number. KIP-1050: unclassified errors are application-recoverable. Whether the record is stored is unknown."""
    return ErrorCode(
        name=f"UNKNOWN_{number}",
        number=number,
        number_kip=number,
        exception_name="UnknownServerException",
        group=Group.APPLICATION_RECOVERABLE,
        group_produce=Group.APPLICATION_RECOVERABLE,
        group_transaction=Group.APPLICATION_RECOVERABLE,
        is_produce_code=True,
        is_transaction_code=True,
        stored=Stored.POSSIBLY,
        text=f"The broker answered with error {number}, which this version does not know: it is newer, or not Apache Kafka.",
        is_known=False,
    )
