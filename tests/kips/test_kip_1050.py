"""KIP-1050, read as the specification: one line per row of each of its tables, in its order.

The columns are the KIP's "New Handling": what an answer of the Produce API and of the transaction APIs means to the application.
Each row is checked in the group of the exception that such a code becomes, and in the `except` clause that catches it. Rows of exceptions
that no broker answers with name the class alone. What a producer makes of answers stands in other tests.
"""

import builtins
import inspect

import pytest

from chaffinch import errors
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.exceptions import exception_for, group_of
from chaffinch.errors.handling import PRODUCE, TRANSACTION, Handling, handling_of

RETRIABLE, REFRESH = Group.RETRIABLE, Group.REFRESH_RETRIABLE
ABORTABLE, RECOVERABLE, CONFIGURATION = Group.TRANSACTION_ABORTABLE, Group.APPLICATION_RECOVERABLE, Group.INVALID_CONFIGURATION
ABSENT = None

TRANSACTION_APIS = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "FindCoordinator"]

CAUGHT_BY = {
    RETRIABLE: errors.RetriableException,
    REFRESH: errors.RefreshRetriableException,
    ABORTABLE: errors.TransactionAbortableException,
    RECOVERABLE: errors.ApplicationRecoverableException,
    CONFIGURATION: errors.InvalidConfigurationException,
}

# fmt: off
ROWS = [
    # exception                               Produce API    transaction APIs
    # RetriableException
    ("CorruptRecordException",                RETRIABLE,     RETRIABLE),
    ("NotEnoughReplicasAfterAppendException", RETRIABLE,     RETRIABLE),
    ("NotEnoughReplicasException",            RETRIABLE,     RETRIABLE),
    ("TimeoutException",                      RETRIABLE,     RETRIABLE),
    ("ConcurrentTransactionsException",       RETRIABLE,     RETRIABLE),
    ("CoordinatorLoadInProgressException",    RETRIABLE,     RETRIABLE),
    # RefreshRetriableException
    ("UnknownTopicOrPartitionException",      REFRESH,       REFRESH),
    ("NotLeaderOrFollowerException",          REFRESH,       REFRESH),
    ("NotCoordinatorException",               REFRESH,       REFRESH),
    ("CoordinatorNotAvailableException",      REFRESH,       REFRESH),
    # TransactionAbortableException
    ("TransactionAbortableException",         ABORTABLE,     ABORTABLE),
    # ApplicationRecoverableException (the three rows without a broker code, and CommitFailed and CorrelationIdMismatch, are below)
    ("InvalidProducerEpochException",         RECOVERABLE,   RECOVERABLE),
    ("ProducerFencedException",               RECOVERABLE,   RECOVERABLE),
    ("InvalidPidMappingException",            RECOVERABLE,   RECOVERABLE),
    ("FencedInstanceIdException",             ABSENT,        RECOVERABLE),
    ("UnknownMemberIdException",              ABSENT,        RECOVERABLE),
    ("IllegalGenerationException",            ABSENT,        RECOVERABLE),
    ("InvalidTxnStateException",              ABORTABLE,     RECOVERABLE),
    # InvalidConfigurationException
    ("SaslAuthenticationException",           CONFIGURATION, CONFIGURATION),
    ("ClusterAuthorizationException",         CONFIGURATION, CONFIGURATION),
    ("TransactionalIdAuthorizationException", CONFIGURATION, CONFIGURATION),
    ("UnsupportedVersionException",           CONFIGURATION, CONFIGURATION),
    ("UnsupportedForMessageFormatException",  CONFIGURATION, CONFIGURATION),
    ("InvalidRecordException",                CONFIGURATION, CONFIGURATION),
    ("InvalidRequiredAcksException",          CONFIGURATION, CONFIGURATION),
    ("RecordBatchTooLargeException",          CONFIGURATION, CONFIGURATION),
    ("InvalidTopicException",                 CONFIGURATION, CONFIGURATION),
    ("TopicAuthorizationException",           CONFIGURATION, CONFIGURATION),
    # The KIP prints the Produce column for this one too; brokers answer it to group requests only.
    ("GroupAuthorizationException",           CONFIGURATION, CONFIGURATION),
]

# Rows of the ApplicationRecoverable table that no answer carries: "generic unknown errors, which will be application recoverable".
ROWS_WITHOUT_CODE = [
    (errors.IllegalStateException,            RECOVERABLE),
    (errors.KafkaException,                   RECOVERABLE),
    (builtins.RuntimeError,                   RECOVERABLE),
    (errors.CommitFailedException,            RECOVERABLE),
    (errors.CorrelationIdMismatchException,   RECOVERABLE),
    (errors.AuthenticationException,          CONFIGURATION),
]

# Exceptions that came after the KIP's table, or that it does not list, with the group decided for them.
ROWS_BEYOND_THE_TABLE = [
    ("InvalidTimestampException",             CONFIGURATION),
    ("RecordTooLargeException",               CONFIGURATION),
    ("InvalidCompactionKeyException",         CONFIGURATION),
    ("InconsistentReplicationFactorException", CONFIGURATION),
    ("UnknownServerException",                RECOVERABLE),
]
# fmt: on

BY_EXCEPTION = {row.exception_name: row for row in codes.ALL}


@pytest.mark.parametrize(("exception_name", "produce", "transaction"), ROWS)
class TestTables:
    """ "Each error code always represents the same class" - except the one row that says otherwise."""

    def test_group_of_produce_errors(self, exception_name: str, produce: Group | None, transaction: Group) -> None:
        code = BY_EXCEPTION[exception_name]
        if produce is ABSENT:
            assert not code.is_produce_code
            return
        error = exception_for(code, api="Produce")
        assert group_of(error) is code.group_produce is produce
        assert isinstance(error, CAUGHT_BY[produce])

    @pytest.mark.parametrize("api", TRANSACTION_APIS)
    def test_group_of_transaction_errors(self, exception_name: str, produce: Group | None, transaction: Group, api: str) -> None:
        code = BY_EXCEPTION[exception_name]
        error = exception_for(code, api=api)
        assert group_of(error) is code.group_transaction is transaction
        assert isinstance(error, CAUGHT_BY[transaction])

    def test_only_its_own_clause_catches_an_error(self, exception_name: str, produce: Group | None, transaction: Group) -> None:
        for api, group in [("Produce", produce), ("EndTxn", transaction)]:
            if group is not ABSENT:
                error = exception_for(BY_EXCEPTION[exception_name], api=api)
                caught = {other for other, clause in CAUGHT_BY.items() if isinstance(error, clause)}
                assert caught == ({REFRESH, RETRIABLE} if group is REFRESH else {group})


@pytest.mark.parametrize(("error_class", "group"), ROWS_WITHOUT_CODE)
def test_group_of_errors_without_a_code(error_class: type[Exception], group: Group) -> None:
    assert group_of(error_class("why")) is group


@pytest.mark.parametrize("error_class", [errors.CommitFailedException, errors.CorrelationIdMismatchException])
def test_two_classes_stay_outside_application_recoverable(error_class: type[Exception]) -> None:
    """ "This class will not be extended by ApplicationRecoverableException": the group is that of KafkaException."""
    assert not issubclass(error_class, errors.ApplicationRecoverableException)
    assert not issubclass(error_class, errors.ApiException)


@pytest.mark.parametrize(("exception_name", "group"), ROWS_BEYOND_THE_TABLE)
def test_group_of_codes_beyond_the_table(exception_name: str, group: Group) -> None:
    assert group_of(exception_for(BY_EXCEPTION[exception_name], api="Produce")) is group


@pytest.mark.parametrize("name", ["OutOfOrderSequenceException", "UnknownProducerIdException"])
def test_sequence_errors_have_no_group(name: str) -> None:
    error = exception_for(BY_EXCEPTION[name], api="Produce")
    assert group_of(error) is Group.NONE
    assert not isinstance(error, tuple(CAUGHT_BY.values()))
    assert isinstance(error, errors.ApiException)


@pytest.mark.parametrize("api", ["Produce", *TRANSACTION_APIS])
def test_a_typical_unknown_error_is_application_recoverable(api: str) -> None:
    error = exception_for(codes.by_number(31_000), api=api)
    assert group_of(error) is RECOVERABLE
    assert isinstance(error, errors.ApplicationRecoverableException)
    assert error.code.number == 31_000


@pytest.mark.parametrize(
    "chain",
    [
        # "New class hierarchy in code will be", twice; and the classes listed under Public Interfaces.
        ["InvalidMetadataException", "RefreshRetriableException", "RetriableException", "ApiException", "KafkaException"],
        ["TopicAuthorizationException", "AuthorizationException", "InvalidConfigurationException", "ApiException"],
        ["GroupAuthorizationException", "AuthorizationException", "InvalidConfigurationException", "ApiException"],
        ["UnknownTopicOrPartitionException", "InvalidMetadataException"],
        ["NotLeaderOrFollowerException", "InvalidMetadataException"],
        ["TransactionAbortableException", "ApiException"],
        ["RetriableException", "ApiException"],
        ["InvalidConfigurationException", "ApiException"],
        ["RefreshRetriableException", "RetriableException"],
        ["ApplicationRecoverableException", "ApiException"],
    ],
    ids=lambda chain: chain[0],
)
def test_class_hierarchy(chain: list[str]) -> None:
    classes = [getattr(errors, name) for name in chain]
    assert list(inspect.getmro(classes[0])[: len(classes)]) == classes


@pytest.mark.parametrize("name", ["RetriableException", "RefreshRetriableException", "ApplicationRecoverableException"])
def test_abstract_classes_cannot_be_raised(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(errors, name)("why")


class TestDemo:
    """The KIP's client side code example: which clause an error of a transaction ends in."""

    @staticmethod
    def clause_of(error: errors.KafkaException) -> str:
        try:
            try:
                raise error
            except errors.TransactionAbortableException:
                return "abort"
        except errors.InvalidConfigurationException:
            return "stop"
        except (errors.KafkaException, errors.ApplicationRecoverableException):
            return "restart"

    @pytest.mark.parametrize(
        ("code", "api", "clause"),
        [
            (codes.TRANSACTION_ABORTABLE, "Produce", "abort"),
            (codes.TRANSACTION_ABORTABLE, "EndTxn", "abort"),
            (codes.INVALID_TXN_STATE, "Produce", "abort"),
            (codes.INVALID_TXN_STATE, "EndTxn", "restart"),
            (codes.INVALID_RECORD, "Produce", "stop"),
            (codes.TOPIC_AUTHORIZATION_FAILED, "AddPartitionsToTxn", "stop"),
            (codes.PRODUCER_FENCED, "EndTxn", "restart"),
            (codes.by_number(200), "Produce", "restart"),
        ],
        ids=lambda value: getattr(value, "name", value),
    )
    def test_example_clause_catches_the_error(self, code: ErrorCode, api: str, clause: str) -> None:
        assert self.clause_of(exception_for(code, api=api)) == clause


class TestHandling:
    """ "Proposed Changes": what each of the four types asks of the producer."""

    @pytest.mark.parametrize(("exception_name", "produce", "transaction"), ROWS)
    def test_handling_follows_the_group(self, exception_name: str, produce: Group | None, transaction: Group) -> None:
        code = BY_EXCEPTION[exception_name]
        expected = {
            RETRIABLE: Handling.RETRY,
            REFRESH: Handling.REFRESH_AND_RETRY,
            ABORTABLE: Handling.ABORT,
            RECOVERABLE: Handling.RESTART,
            CONFIGURATION: Handling.FIX_CONFIGURATION,
        }
        if produce is not ABSENT:
            assert handling_of(code, PRODUCE, in_transaction=True) is expected[produce]
        assert handling_of(code, TRANSACTION, in_transaction=True) is expected[transaction]
