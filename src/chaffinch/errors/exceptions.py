"""Exception classes of KIP-1050, and their message texts.

`KafkaException` < `ApiException` < the KIP's group classes < one class per row of the table in `codes.py`, named as in Apache Kafka.
Applications react to the group classes, so each class is a subclass of its code's group:

    RetriableException (abstract)
        RefreshRetriableException (abstract)
            InvalidMetadataException (abstract)
    TransactionAbortableException
    ApplicationRecoverableException (abstract)
    InvalidConfigurationException
        AuthorizationException, AuthenticationException

Only INVALID_TXN_STATE belongs to two groups, depending on the API that returned it. Its class has a subclass for each.

Each exception composes its text from its facts, is compared by them and can be pickled (without its `__cause__`, as in Python).
"""
# fmt: off

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group, Stored
from chaffinch.errors.handling import ADVICE, ADVICE_FOR_ANY_CLIENT, ADVICE_IF_POSSIBLY_STORED, RETRIABLE_GROUPS
from chaffinch.identifiers import TopicPartition
from chaffinch.public_names import exported_from

__all__ = [
    "ApiException", "ApplicationRecoverableException", "AuthenticationException", "AuthorizationException",
    "BrokerIdNotRegisteredException", "BrokerNotAvailableException", "BufferExhaustedException", "ClusterAuthorizationException",
    "CommitFailedException", "ConcurrentTransactionsException", "ConfigException", "ControllerMovedException",
    "CoordinatorLoadInProgressException", "CoordinatorNotAvailableException", "CorrelationIdMismatchException",
    "CorruptRecordException", "Culprit", "DelegationTokenAuthorizationException", "DelegationTokenDisabledException",
    "DelegationTokenExpiredException", "DelegationTokenNotFoundException", "DelegationTokenOwnerMismatchException",
    "DuplicateBrokerRegistrationException", "DuplicateResourceException", "DuplicateSequenceException", "DuplicateVoterException",
    "ElectionNotNeededException", "EligibleLeadersNotAvailableException", "FeatureUpdateFailedException", "FencedInstanceIdException",
    "FencedLeaderEpochException", "FencedMemberEpochException", "FencedStateEpochException", "FetchSessionIdNotFoundException",
    "FetchSessionTopicIdException", "GroupAuthorizationException", "GroupIdNotFoundException", "GroupMaxSizeReachedException",
    "GroupNotEmptyException", "GroupSubscribedToTopicException", "IllegalGenerationException", "IllegalSaslStateException",
    "IllegalStateException", "InconsistentClusterIdException", "InconsistentGroupProtocolException",
    "InconsistentReplicaConfigurationException", "InconsistentReplicationFactorException", "InconsistentTopicIdException",
    "InconsistentVoterSetException", "IneligibleReplicaException", "InvalidCommitOffsetSizeException", "InvalidCompactionKeyException",
    "InvalidConfigurationException", "InvalidFetchSessionEpochException", "InvalidFetchSizeException", "InvalidGroupIdException",
    "InvalidMetadataException", "InvalidPartitionsException", "InvalidPidMappingException", "InvalidPrincipalTypeException",
    "InvalidProducerEpochException", "InvalidRecordException", "InvalidRecordStateException", "InvalidRegistrationException",
    "InvalidRegularExpression", "InvalidReplicaAssignmentException", "InvalidReplicationFactorException", "InvalidRequestException",
    "InvalidRequiredAcksException", "InvalidSessionTimeoutException", "InvalidShareSessionEpochException", "InvalidTimestampException",
    "InvalidTopicException", "InvalidTxnStateException", "InvalidTxnTimeoutException", "InvalidUpdateVersionException",
    "InvalidVoterKeyException", "KafkaException", "KafkaStorageException", "LeaderNotAvailableException", "ListenerNotFoundException",
    "LogDirNotFoundException", "MemberIdRequiredException", "MismatchedEndpointTypeException", "NetworkException",
    "NewLeaderElectedException", "NoOffsetForPartitionException", "NoReassignmentInProgressException",
    "NotControllerException", "NotCoordinatorException",
    "NotEnoughReplicasAfterAppendException", "NotEnoughReplicasException", "NotLeaderOrFollowerException", "OffsetMetadataTooLarge",
    "OffsetMovedToTieredStorageException", "OffsetNotAvailableException", "OffsetOutOfRangeException", "OperationNotAttemptedException",
    "OutOfOrderSequenceException", "PolicyViolationException", "PositionOutOfRangeException", "PreferredLeaderNotAvailableException",
    "PrincipalDeserializationException", "ProduceInvalidTxnStateException", "ProducerFencedException",
    "ReassignmentInProgressException", "RebalanceInProgressException", "RebootstrapRequiredException",
    "RecordBatchTooLargeException", "RecordDeserializationException",
    "RecordTooLargeException", "RefreshRetriableException", "ReplicaNotAvailableException", "ResourceNotFoundException",
    "RetriableException", "SaslAuthenticationException", "SecurityDisabledException", "ShareSessionLimitReachedException",
    "ShareSessionNotFoundException", "SnapshotNotFoundException", "SslAuthenticationException", "StaleBrokerEpochException",
    "StaleMemberEpochException", "StreamsInvalidTopologyEpochException", "StreamsInvalidTopologyException",
    "StreamsTopologyFencedException", "TableWriteException", "TelemetryTooLargeException", "ThrottlingQuotaExceededException",
    "TimeoutException",
    "TopicAuthorizationException", "TopicDeletionDisabledException", "TopicExistsException", "TransactionAbortableException",
    "TransactionCoordinatorFencedException", "TransactionInvalidTxnStateException", "TransactionalIdAuthorizationException",
    "TransactionalIdNotFoundException", "UnacceptableCredentialException", "UnknownControllerIdException", "UnknownLeaderEpochException",
    "UnknownMemberIdException", "UnknownProducerIdException", "UnknownServerException", "UnknownSubscriptionIdException",
    "UnknownTopicIdException", "UnknownTopicOrPartitionException", "UnreleasedInstanceIdException", "UnstableOffsetCommitException",
    "UnsupportedAssignorException", "UnsupportedByAuthenticationException", "UnsupportedCompressionTypeException",
    "UnsupportedEndpointTypeException", "UnsupportedForMessageFormatException", "UnsupportedSaslMechanismException",
    "UnsupportedVersionException", "VoterNotFoundException", "WakeupException", "exception_for", "group_of",
]

# Responses of these APIs use the table's transaction column, Produce its own (KIP-1050).
PRODUCE_APIS: Final = frozenset({"Produce"})
TRANSACTION_APIS: Final = frozenset(
    {"FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"}
)
# A broker's message may be 32 KiB long and list thousands of records; a log line is shorter.
TEXT_CHARACTERS_MAX: Final = 1000
CULPRITS_NAMED_MAX: Final = 5

_CODE_BY_CLASS_NAME: Final = {code.exception_name: code for code in reversed(codes.ALL)}


@exported_from("chaffinch.errors")
class Culprit(NamedTuple):
    """One record that caused its batch to be refused: its index within the batch, counted from 0, its code, and the reason."""

    batch_index: int
    code: ErrorCode
    message: str


@exported_from("chaffinch.errors")
class KafkaException(Exception):
    """Base class of all exceptions of Chaffinch. A plain KafkaException is an unclassified failure: application-recoverable.

    Attributes:
        message: the text without code, location and advice, as from the broker.
        code: row of the error table in `errors.codes`.
        topic_partition: partition of the error; None if it belongs to none. Its `partition` is -1 for a whole topic.
        culprits: the records that caused the error, empty if unknown.
        group: KIP-1050 group: how the application reacts.
        stored: whether a record with this error is in the log.
        api: name of the request, such as `Produce`; None for errors without one.
    """

    class_code: ClassVar[ErrorCode] = codes.UNKNOWN_SERVER_ERROR
    class_group: ClassVar[Group] = Group.APPLICATION_RECOVERABLE
    class_stored: ClassVar[Stored | None] = None
    is_abstract: ClassVar[bool] = False

    message: str
    code: ErrorCode
    topic_partition: TopicPartition | None
    culprits: tuple[Culprit, ...]
    group: Group
    stored: Stored
    api: str | None
    advised: str | None = None
    """Advice that replaces that of the group."""

    def __init_subclass__(cls, *, group: Group | None = None, abstract: bool = False, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__module__ == __name__:
            exported_from("chaffinch.errors")(cls)
        cls.is_abstract = abstract
        if group is not None:
            cls.class_group = group
            cls.__doc__ = cls.__doc__ or f"{group.value}: {ADVICE[group]}."
        if (code := _CODE_BY_CLASS_NAME.get(cls.__name__)) is not None:
            cls.class_code = code
            cls.__doc__ = cls.__doc__ or f"{code.name}: {code.text}"

    def __init__(
        self,
        message: str | None = None,
        *,
        code: ErrorCode | None = None,
        topic_partition: TopicPartition | None = None,
        culprits: Sequence[Culprit] = (),
        group: Group | None = None,
        stored: Stored | None = None,
        api: str | None = None,
    ) -> None:
        """Missing values come from the code, and the code from the class. With culprits the default of `stored` is no: the broker has
        refused the batch.
        """
        if self.is_abstract:
            raise TypeError(f"{type(self).__name__} is a group of exceptions, not one that can be raised")
        self.code = code or self.class_code
        self.culprits = tuple(culprits)
        text = message if message is not None else _message_of(self.culprits) or self.code.text
        # KIP-579's message begins with the name, so that clients can distinguish its 40 from others. The exception's text contains the name
        # already.
        self.message = text.removeprefix(f"{self.code.name}: ")
        self.topic_partition = topic_partition
        self.api = api
        self.group = group or self._group()
        self.stored = stored or self.class_stored or (Stored.NO if self.culprits else self.code.stored)
        super().__init__(self.message)

    def _group(self) -> Group:
        return self.class_group

    @property
    def name(self) -> str:
        """Kafka's name of the code, `INVALID_RECORD`."""
        return self.code.name

    def __str__(self) -> str:
        return one_line(self.message)

    def _facts(self) -> tuple[object, ...]:
        return (type(self), self.message, self.code, self.topic_partition, self.culprits, self.group, self.stored, self.api, self.advised)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaException) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((type(self), self.message, self.code))

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), dict(self.__dict__)))


class ApiException(KafkaException, group=Group.NONE):
    """An error response of a broker, or an equivalent error of the client (a time-out, a lost connection)."""

    def _group(self) -> Group:
        if self.class_group is not Group.NONE:
            return self.class_group
        if self.api in PRODUCE_APIS:
            return self.code.group_produce
        # Without a known API the code of two groups counts as the more severe one.
        is_transaction = self.api in TRANSACTION_APIS or self.code is codes.INVALID_TXN_STATE
        return self.code.group_transaction if is_transaction else self.code.group

    def __str__(self) -> str:
        code = f"{self.code.name} ({self.code.number})" if self.code.is_known else self.code.name
        facts = [one_line(self.message).rstrip(".")]
        if self._concerns_records():
            facts.append(_STORED_TEXTS[self.stored])
        facts.append(self.advice)
        return ": ".join([*_location_of(self), code, "; ".join(filter(None, facts))])

    @property
    def advice(self) -> str:
        """What the application can do, as at the end of the exception's text; "" if there is none.

        Advice about the producer is left out for errors of a consumer or of topic creation.
        """
        if self.advised is not None:
            return self.advised
        if self._concerns_records() and self.stored is Stored.POSSIBLY and self.group in RETRIABLE_GROUPS:
            return ADVICE_IF_POSSIBLY_STORED
        if self.api in PRODUCE_APIS | TRANSACTION_APIS or self._concerns_records():
            return ADVICE[self.group]
        return ADVICE_FOR_ANY_CLIENT.get(self.group, "") if self.code.is_retriable or self.api is None else ""

    def _concerns_records(self) -> bool:
        is_produce = self.api in PRODUCE_APIS or (self.api is None and (self.culprits or self.topic_partition))
        return bool(is_produce) and self.code.is_produce_code


class ConfigException(KafkaException, group=Group.INVALID_CONFIGURATION):
    """An option, or a set of options, that cannot be used. Raised before anything is sent."""

    class_code = codes.INVALID_CONFIG
    class_stored = Stored.NO


class IllegalStateException(KafkaException):
    """A call that the object's state does not allow, such as a commit without a transaction."""

    class_stored = Stored.NO


class CorrelationIdMismatchException(IllegalStateException):
    """A response that matches no request of the connection. KIP-1050 excludes it from the group's class, not from the group."""

    class_stored = Stored.POSSIBLY


class CommitFailedException(KafkaException):
    """Offsets that were not committed because the group has rebalanced. As in KIP-1050 not a subclass of
    ApplicationRecoverableException.
    """

    class_stored = Stored.NO

class NoOffsetForPartitionException(KafkaException, group=Group.INVALID_CONFIGURATION):
    """A partition without a committed offset, read by a consumer whose auto.offset.reset is none."""

    class_stored = Stored.NO


class RecordDeserializationException(KafkaException, group=Group.INVALID_CONFIGURATION):
    """A record that the consumer's deserializer refused: `topic_partition`, and its offset in the text. Seek past it to continue."""

    class_stored = Stored.NO


class TableWriteException(KafkaException):
    """`write_table` has not written the table, or it is unknown whether it has: the message says which, and what to do.

    With the same token the call can always be repeated. If `group` is InvalidConfiguration it fails again unless something is corrected.

    Attributes:
        error_name: the error's name: of Kafka, or of Chaffinch, such as ROWS_REJECTED.
    """

    error_name: str

    def __init__(self, message: str | None = None, *, error_name: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.error_name = error_name or self.code.name

    def __str__(self) -> str:
        return f"{self.error_name}: {super().__str__()}"


class WakeupException(KafkaException):
    """`wakeup()` on another thread ended a waiting call of a consumer."""

    class_stored = Stored.NO


# Retriable: the client retries by itself; they are raised after its deadline.
class RetriableException(ApiException, group=Group.RETRIABLE, abstract=True): ...
class CorruptRecordException(RetriableException): ...
class TimeoutException(RetriableException): ...
class CoordinatorLoadInProgressException(RetriableException): ...
class NotEnoughReplicasException(RetriableException): ...
class NotEnoughReplicasAfterAppendException(RetriableException): ...
class NotControllerException(RetriableException): ...
class ConcurrentTransactionsException(RetriableException): ...
class FetchSessionIdNotFoundException(RetriableException): ...
class InvalidFetchSessionEpochException(RetriableException): ...
class UnknownLeaderEpochException(RetriableException): ...
class OffsetNotAvailableException(RetriableException): ...
class UnstableOffsetCommitException(RetriableException): ...
class ThrottlingQuotaExceededException(RetriableException): ...
class FetchSessionTopicIdException(RetriableException): ...
class ShareSessionNotFoundException(RetriableException): ...
class InvalidShareSessionEpochException(RetriableException): ...
class ShareSessionLimitReachedException(RetriableException): ...
class BufferExhaustedException(TimeoutException):
    """The producer's memory stayed full for max.block.ms."""

# RefreshRetriable: the client refreshes the metadata, or the coordinator, before it retries.
class RefreshRetriableException(RetriableException, group=Group.REFRESH_RETRIABLE, abstract=True): ...
class CoordinatorNotAvailableException(RefreshRetriableException): ...
class NotCoordinatorException(RefreshRetriableException): ...
class InvalidMetadataException(RefreshRetriableException, abstract=True):
    """The client's metadata about the topic, its leader or its id is out of date."""
class UnknownTopicOrPartitionException(InvalidMetadataException): ...
class LeaderNotAvailableException(InvalidMetadataException): ...
class NotLeaderOrFollowerException(InvalidMetadataException): ...
class ReplicaNotAvailableException(InvalidMetadataException): ...
class NetworkException(InvalidMetadataException): ...
class KafkaStorageException(InvalidMetadataException): ...
class ListenerNotFoundException(InvalidMetadataException): ...
class FencedLeaderEpochException(InvalidMetadataException): ...
class PreferredLeaderNotAvailableException(InvalidMetadataException): ...
class EligibleLeadersNotAvailableException(InvalidMetadataException): ...
class ElectionNotNeededException(InvalidMetadataException): ...
class UnknownTopicIdException(InvalidMetadataException): ...
class InconsistentTopicIdException(InvalidMetadataException): ...

# TransactionAbortable: abort the transaction and continue with the same producer.
class TransactionAbortableException(ApiException, group=Group.TRANSACTION_ABORTABLE): ...
class OperationNotAttemptedException(TransactionAbortableException): ...

# ApplicationRecoverable: the producer is unusable; start a new one.
class ApplicationRecoverableException(ApiException, group=Group.APPLICATION_RECOVERABLE, abstract=True): ...
class UnknownServerException(ApplicationRecoverableException): ...
class BrokerNotAvailableException(ApplicationRecoverableException): ...
class OffsetMetadataTooLarge(ApplicationRecoverableException): ...
class IllegalGenerationException(ApplicationRecoverableException): ...
class InvalidGroupIdException(ApplicationRecoverableException): ...
class UnknownMemberIdException(ApplicationRecoverableException): ...
class InvalidCommitOffsetSizeException(ApplicationRecoverableException): ...
class InvalidRequestException(ApplicationRecoverableException): ...
class PolicyViolationException(ApplicationRecoverableException): ...
class InvalidProducerEpochException(ApplicationRecoverableException): ...
class InvalidPidMappingException(ApplicationRecoverableException): ...
class GroupIdNotFoundException(ApplicationRecoverableException): ...
class FencedInstanceIdException(ApplicationRecoverableException): ...
class ProducerFencedException(ApplicationRecoverableException): ...
class StaleMemberEpochException(ApplicationRecoverableException): ...

# InvalidConfiguration: the data, the configuration or the permissions must change; the producer stays usable.
class InvalidConfigurationException(ApiException, group=Group.INVALID_CONFIGURATION): ...
class RecordTooLargeException(InvalidConfigurationException): ...
class InvalidTopicException(InvalidConfigurationException): ...
class RecordBatchTooLargeException(InvalidConfigurationException): ...
class InvalidRequiredAcksException(InvalidConfigurationException): ...
class InvalidTimestampException(InvalidConfigurationException): ...
class UnsupportedVersionException(InvalidConfigurationException): ...
class InvalidReplicationFactorException(InvalidConfigurationException): ...
class UnsupportedForMessageFormatException(InvalidConfigurationException): ...
class InvalidTxnTimeoutException(InvalidConfigurationException): ...
class UnsupportedCompressionTypeException(InvalidConfigurationException): ...
class InvalidRecordException(InvalidConfigurationException): ...
class InconsistentReplicationFactorException(InvalidConfigurationException): ...
class InvalidCompactionKeyException(InvalidRecordException): ...
class AuthenticationException(InvalidConfigurationException):
    """The broker did not accept the client's credentials or certificate."""
class UnsupportedSaslMechanismException(AuthenticationException): ...
class IllegalSaslStateException(AuthenticationException): ...
class SaslAuthenticationException(AuthenticationException): ...
class SslAuthenticationException(AuthenticationException):
    """TLS failed: one end does not accept the other's certificate, host name, versions or ciphers."""
class AuthorizationException(InvalidConfigurationException):
    """The principal may not do this."""
class TopicAuthorizationException(AuthorizationException): ...
class GroupAuthorizationException(AuthorizationException): ...
class ClusterAuthorizationException(AuthorizationException): ...
class TransactionalIdAuthorizationException(AuthorizationException): ...
class DelegationTokenAuthorizationException(AuthorizationException): ...

# In no group: KIP-1050 does not classify the sequence errors; the rest is never returned to a producer.
class OutOfOrderSequenceException(ApiException): ...
class UnknownProducerIdException(OutOfOrderSequenceException): ...
class OffsetOutOfRangeException(ApiException): ...
class InvalidFetchSizeException(ApiException): ...
class ControllerMovedException(ApiException): ...
class InconsistentGroupProtocolException(ApiException): ...
class InvalidSessionTimeoutException(ApiException): ...
class RebalanceInProgressException(ApiException): ...
class TopicExistsException(ApiException): ...
class InvalidPartitionsException(ApiException): ...
class InvalidReplicaAssignmentException(ApiException): ...
class DuplicateSequenceException(ApiException): ...
class TransactionCoordinatorFencedException(ApiException): ...
class SecurityDisabledException(ApiException): ...
class LogDirNotFoundException(ApiException): ...
class ReassignmentInProgressException(ApiException): ...
class DelegationTokenDisabledException(ApiException): ...
class DelegationTokenNotFoundException(ApiException): ...
class DelegationTokenOwnerMismatchException(ApiException): ...
class UnsupportedByAuthenticationException(ApiException): ...
class DelegationTokenExpiredException(ApiException): ...
class InvalidPrincipalTypeException(ApiException): ...
class GroupNotEmptyException(ApiException): ...
class TopicDeletionDisabledException(ApiException): ...
class StaleBrokerEpochException(ApiException): ...
class MemberIdRequiredException(ApiException): ...
class GroupMaxSizeReachedException(ApiException): ...
class NoReassignmentInProgressException(ApiException): ...
class GroupSubscribedToTopicException(ApiException): ...
class ResourceNotFoundException(ApiException): ...
class DuplicateResourceException(ApiException): ...
class UnacceptableCredentialException(ApiException): ...
class InconsistentVoterSetException(ApiException): ...
class InvalidUpdateVersionException(ApiException): ...
class FeatureUpdateFailedException(ApiException): ...
class PrincipalDeserializationException(ApiException): ...
class SnapshotNotFoundException(ApiException): ...
class PositionOutOfRangeException(ApiException): ...
class DuplicateBrokerRegistrationException(ApiException): ...
class BrokerIdNotRegisteredException(ApiException): ...
class InconsistentClusterIdException(ApiException): ...
class TransactionalIdNotFoundException(ApiException): ...
class IneligibleReplicaException(ApiException): ...
class NewLeaderElectedException(ApiException): ...
class OffsetMovedToTieredStorageException(ApiException): ...
class FencedMemberEpochException(ApiException): ...
class UnreleasedInstanceIdException(ApiException): ...
class UnsupportedAssignorException(ApiException): ...
class MismatchedEndpointTypeException(ApiException): ...
class UnsupportedEndpointTypeException(ApiException): ...
class UnknownControllerIdException(ApiException): ...
class UnknownSubscriptionIdException(ApiException): ...
class TelemetryTooLargeException(ApiException): ...
class InvalidRegistrationException(ApiException): ...
class InvalidRecordStateException(ApiException): ...
class FencedStateEpochException(ApiException): ...
class InvalidVoterKeyException(ApiException): ...
class DuplicateVoterException(ApiException): ...
class VoterNotFoundException(ApiException): ...
class InvalidRegularExpression(ApiException): ...
class RebootstrapRequiredException(ApiException): ...
class StreamsInvalidTopologyException(ApiException): ...
class StreamsInvalidTopologyEpochException(ApiException): ...
class StreamsTopologyFencedException(ApiException): ...

# The one code of two groups (KIP-1050's "special handling"): `exception_for` picks by API.
class InvalidTxnStateException(ApiException): ...
class ProduceInvalidTxnStateException(InvalidTxnStateException, TransactionAbortableException):
    """INVALID_TXN_STATE in a Produce response: abort the transaction."""
class TransactionInvalidTxnStateException(InvalidTxnStateException, ApplicationRecoverableException):
    """INVALID_TXN_STATE in the response of a transaction API: an abort does not help."""

# KIP-579 uses two names for its exception.
InconsistentReplicaConfigurationException = InconsistentReplicationFactorException

# fmt: on


@exported_from("chaffinch.errors")
def exception_for(
    code: ErrorCode,
    *,
    message: str | None = None,
    topic_partition: TopicPartition | None = None,
    culprits: Sequence[Culprit] = (),
    stored: Stored | None = None,
    api: str | None = None,
    cause: BaseException | None = None,
) -> ApiException:
    """Make the exception of a code, without raising it.

    Args:
        code: row of the error table. An unknown code becomes an UnknownServerException with its number.
        message: the broker's message; by default the row's text.
        topic_partition: partition of the error.
        culprits: the records that caused the error.
        stored: whether the record may be in the log; by default that of the code, or NO with culprits.
        api: name of the request, such as `Produce` or `EndTxn`, on which the group may depend.
        cause: becomes `__cause__`.

    Returns:
        An instance of the code's class.

    Raises:
        ValueError: the code is NONE, which is not an error.
    """
    if code is codes.NONE:
        raise ValueError("code NONE is success: there is no exception for it")
    error_class = _CLASS_BY_NAME[code.exception_name]
    if code is codes.INVALID_TXN_STATE and api in PRODUCE_APIS:
        error_class = ProduceInvalidTxnStateException
    elif code is codes.INVALID_TXN_STATE and api in TRANSACTION_APIS:
        error_class = TransactionInvalidTxnStateException
    error = error_class(message, code=code, topic_partition=topic_partition, culprits=culprits, stored=stored, api=api)
    error.__cause__ = cause
    return error


@exported_from("chaffinch.errors")
def group_of(exception: BaseException) -> Group:
    """The KIP-1050 group of any exception.

    Args:
        exception: an exception of Chaffinch or of another library.

    Returns:
        The group; APPLICATION_RECOVERABLE for exceptions of other libraries, which are unclassified.
    """
    return exception.group if isinstance(exception, KafkaException) else Group.APPLICATION_RECOVERABLE


@exported_from("chaffinch.errors")
def _restore(error_class: type[KafkaException], facts: dict[str, Any]) -> KafkaException:
    """Unpickle an exception. Pickles refer to this function, as `chaffinch.errors._restore`."""
    error = error_class.__new__(error_class, facts["message"])
    error.__dict__.update(facts)
    return error


_STORED_TEXTS: Final = {Stored.NO: "not stored", Stored.POSSIBLY: "possibly stored", Stored.YES: "stored"}


def _location_of(error: ApiException) -> list[str]:
    """The location, such as `Produce for orders-0, records 3 and 7`; empty if unknown. Culprits with another code are named later in the
    text.
    """
    culprits = error.culprits if any(culprit.code == error.code for culprit in error.culprits) else ()
    where = [error.api or "", f"for {error.topic_partition}" if error.topic_partition and error.api else str(error.topic_partition or "")]
    location = ", ".join(filter(None, [" ".join(filter(None, where)), format_records([culprit.batch_index for culprit in culprits])]))
    return [location] if location else []


def format_records(indices: Sequence[int]) -> str:
    """`record 3`, `records 3 and 7`, or the first of many and the number of the others; empty without records."""
    named = [str(index) for index in indices[:CULPRITS_NAMED_MAX]]
    if more := len(indices) - len(named):
        named.append(f"{more} more")
    return f"record {named[0]}" if len(named) == 1 else f"records {', '.join(named[:-1])} and {named[-1]}" if named else ""


def _message_of(culprits: tuple[Culprit, ...]) -> str:
    """Message of an error without its own: the different messages of its culprits, in order."""
    messages = list(dict.fromkeys(culprit.message.rstrip(".") for culprit in culprits if culprit.message))
    more = len(messages) - CULPRITS_NAMED_MAX
    return "; ".join([*messages[:CULPRITS_NAMED_MAX], *([f"and {more} other reasons"] if more > 0 else [])])


def one_line(text: str) -> str:
    """External text as part of a log line: shortened, without line ends or terminal control characters."""
    line = " ".join(text.split())
    shown = line if len(line) <= TEXT_CHARACTERS_MAX else f"{line[:TEXT_CHARACTERS_MAX]} ... ({len(line)} characters)"
    return shown if shown.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)


_CLASS_BY_NAME: Final[dict[str, type[ApiException]]] = {
    name: value for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, ApiException)
}
