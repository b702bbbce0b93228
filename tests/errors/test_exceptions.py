"""Exception classes, their facts, and their one-line texts."""

import concurrent.futures
import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch import errors
from chaffinch.errors import codes, exceptions
from chaffinch.errors.codes import ErrorCode, Group, Stored
from chaffinch.errors.exceptions import Culprit, exception_for, group_of
from chaffinch.identifiers import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)
FAILURES = [row for row in codes.ALL if row is not codes.NONE]
CLASSES = sorted(
    {value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, errors.KafkaException)},
    key=lambda error_class: error_class.__name__,
)
CONCRETE = [error_class for error_class in CLASSES if not error_class.is_abstract]
APIS = [None, "Produce", "EndTxn", "CreateTopics"]


class TestTree:
    @pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.name)
    def test_every_row_has_a_class_of_its_own_name(self, row: ErrorCode) -> None:
        error = exception_for(row)
        assert type(error).__name__ == row.exception_name
        assert error.code is row
        assert type(error)().code is row

    def test_no_two_rows_share_a_class(self) -> None:
        assert len({row.exception_name for row in FAILURES}) == len(FAILURES)

    @pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.name)
    def test_class_is_a_subclass_of_its_group(self, row: ErrorCode) -> None:
        bases = {
            Group.RETRIABLE: errors.RetriableException,
            Group.REFRESH_RETRIABLE: errors.RefreshRetriableException,
            Group.TRANSACTION_ABORTABLE: errors.TransactionAbortableException,
            Group.APPLICATION_RECOVERABLE: errors.ApplicationRecoverableException,
            Group.INVALID_CONFIGURATION: errors.InvalidConfigurationException,
        }
        above = {group for group, base in bases.items() if isinstance(exception_for(row), base)}
        expected = {row.group} - {Group.NONE} | ({Group.RETRIABLE} if row.group is Group.REFRESH_RETRIABLE else set())
        assert above == expected

    @pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.name)
    def test_metadata_refreshing_codes_are_invalid_metadata_exceptions(self, row: ErrorCode) -> None:
        assert isinstance(exception_for(row), errors.InvalidMetadataException) == row.refreshes_metadata

    @pytest.mark.parametrize(
        ("child", "parent"),
        [
            ("InvalidCompactionKeyException", "InvalidRecordException"),
            ("UnknownProducerIdException", "OutOfOrderSequenceException"),
            ("BufferExhaustedException", "TimeoutException"),
            ("TopicAuthorizationException", "AuthorizationException"),
            ("GroupAuthorizationException", "AuthorizationException"),
            ("ClusterAuthorizationException", "AuthorizationException"),
            ("TransactionalIdAuthorizationException", "AuthorizationException"),
            ("SaslAuthenticationException", "AuthenticationException"),
            ("ApiException", "KafkaException"),
            ("ConfigException", "KafkaException"),
            ("CommitFailedException", "KafkaException"),
            ("IllegalStateException", "KafkaException"),
            ("CorrelationIdMismatchException", "IllegalStateException"),
        ],
    )
    def test_parents(self, child: str, parent: str) -> None:
        assert getattr(errors, child).__base__ is getattr(errors, parent)

    @pytest.mark.parametrize(
        "name", ["RetriableException", "RefreshRetriableException", "InvalidMetadataException", "ApplicationRecoverableException"]
    )
    def test_abstract_groups_are_caught_but_never_raised(self, name: str) -> None:
        with pytest.raises(TypeError, match=f"{name} is a group of exceptions"):
            getattr(errors, name)("text")

    def test_alias_of_kip_579(self) -> None:
        assert errors.InconsistentReplicaConfigurationException is errors.InconsistentReplicationFactorException

    def test_the_package_exports_every_class_and_nothing_else(self) -> None:
        public = {error_class.__name__ for error_class in CLASSES} | {"InconsistentReplicaConfigurationException"}
        assert set(exceptions.__all__) == public | {"Culprit", "exception_for", "group_of"}
        assert len(exceptions.__all__) == len(set(exceptions.__all__))
        assert set(exceptions.__all__) <= set(errors.__all__)
        assert all(hasattr(errors, name) for name in errors.__all__)

    @pytest.mark.parametrize("error_class", CLASSES, ids=lambda error_class: error_class.__name__)
    def test_every_class_is_documented(self, error_class: type[errors.KafkaException]) -> None:
        assert error_class.__dict__["__doc__"].rstrip().endswith((".", "?"))


class TestFacts:
    def test_defaults_come_from_the_code(self) -> None:
        error = errors.TimeoutException()
        assert (error.code, error.name, error.group, error.stored) == (
            codes.REQUEST_TIMED_OUT,
            "REQUEST_TIMED_OUT",
            Group.RETRIABLE,
            Stored.POSSIBLY,
        )
        assert (error.message, error.topic_partition, error.culprits, error.api) == (codes.REQUEST_TIMED_OUT.text, None, (), None)

    def test_arguments_override_the_code(self) -> None:
        culprit = Culprit(3, codes.INVALID_TIMESTAMP, "too old")
        error = errors.InvalidRecordException(
            "why",
            code=codes.INVALID_TIMESTAMP,
            topic_partition=ORDERS_0,
            culprits=[culprit],
            stored=Stored.POSSIBLY,
            api="Produce",
            group=Group.NONE,
        )
        assert (error.message, error.code, error.topic_partition, error.culprits) == ("why", codes.INVALID_TIMESTAMP, ORDERS_0, (culprit,))
        assert (error.stored, error.api, error.group, error.args) == (Stored.POSSIBLY, "Produce", Group.NONE, ("why",))

    def test_culprits_make_the_batch_not_stored(self) -> None:
        row = codes.by_number(200)
        assert exception_for(row).stored is Stored.POSSIBLY
        assert exception_for(row, culprits=[Culprit(0, row, "?")]).stored is Stored.NO

    @pytest.mark.parametrize(
        ("api", "group", "base"),
        [
            ("Produce", Group.TRANSACTION_ABORTABLE, errors.TransactionAbortableException),
            ("EndTxn", Group.APPLICATION_RECOVERABLE, errors.ApplicationRecoverableException),
            ("InitProducerId", Group.APPLICATION_RECOVERABLE, errors.ApplicationRecoverableException),
            (None, Group.APPLICATION_RECOVERABLE, errors.InvalidTxnStateException),
        ],
    )
    def test_the_one_code_of_two_groups(self, api: str | None, group: Group, base: type[errors.KafkaException]) -> None:
        error = exception_for(codes.INVALID_TXN_STATE, api=api)
        assert error.group is group_of(error) is group
        assert isinstance(error, base)
        assert isinstance(error, errors.InvalidTxnStateException)

    @pytest.mark.parametrize(
        ("api", "group"),
        [
            (None, Group.NONE),
            ("CreateTopics", Group.NONE),
            ("Produce", Group.APPLICATION_RECOVERABLE),
            ("EndTxn", Group.APPLICATION_RECOVERABLE),
        ],
    )
    def test_code_unexpected_from_an_api(self, api: str | None, group: Group) -> None:
        assert exception_for(codes.TOPIC_ALREADY_EXISTS, api=api).group is group

    def test_unknown_codes_keep_their_number(self) -> None:
        error = exception_for(codes.by_number(200), api="Produce")
        assert isinstance(error, errors.UnknownServerException)
        assert (error.code.number, error.name, error.group) == (200, "UNKNOWN_200", Group.APPLICATION_RECOVERABLE)

    def test_cause_is_the_cause(self) -> None:
        cause = errors.UnknownTopicOrPartitionException("no such topic")
        assert exception_for(codes.REQUEST_TIMED_OUT, cause=cause).__cause__ is cause

    def test_success_has_no_exception(self) -> None:
        with pytest.raises(ValueError, match="NONE"):
            exception_for(codes.NONE)

    @pytest.mark.parametrize(
        ("error", "group", "stored"),
        [
            (errors.ConfigException("x"), Group.INVALID_CONFIGURATION, Stored.NO),
            (errors.IllegalStateException("x"), Group.APPLICATION_RECOVERABLE, Stored.NO),
            (errors.CommitFailedException("x"), Group.APPLICATION_RECOVERABLE, Stored.NO),
            (errors.CorrelationIdMismatchException("x"), Group.APPLICATION_RECOVERABLE, Stored.POSSIBLY),
            (errors.KafkaException("x"), Group.APPLICATION_RECOVERABLE, Stored.POSSIBLY),
            (errors.ApiException("x"), Group.APPLICATION_RECOVERABLE, Stored.POSSIBLY),
        ],
    )
    def test_exceptions_without_a_row(self, error: errors.KafkaException, group: Group, stored: Stored) -> None:
        assert (group_of(error), error.stored, error.message) == (group, stored, "x")
        assert error.name == error.code.name

    def test_foreign_exceptions_are_application_recoverable(self) -> None:
        assert group_of(RuntimeError("x")) is Group.APPLICATION_RECOVERABLE


class TestPickling:
    @pytest.mark.parametrize("error_class", CONCRETE, ids=lambda error_class: error_class.__name__)
    def test_every_class_survives_a_process_boundary(self, error_class: type[errors.KafkaException]) -> None:
        error = error_class(
            "why",
            topic_partition=ORDERS_0,
            culprits=[Culprit(1, codes.INVALID_COMPACTION_KEY, "no key"), Culprit(4, codes.by_number(200), "?")],
            stored=Stored.YES,
            api="Produce",
        )
        error.__cause__ = errors.TimeoutException()
        for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert copied == error
            assert hash(copied) == hash(error)
            assert (type(copied), str(copied), copied.args) == (type(error), str(error), error.args)
            assert copied.__cause__ is None

    def test_notes_and_attributes_of_a_subclass_survive(self) -> None:
        error: Any = errors.TimeoutException("late")
        error.add_note("tried for 10000 ms")
        error.attempts = 3
        copied = pickle.loads(pickle.dumps(error))
        assert (copied.__notes__, copied.attempts) == (["tried for 10000 ms"], 3)

    def test_through_a_future(self) -> None:
        future = concurrent.futures.Future[None]()
        future.set_exception(errors.InvalidTopicException("a/b"))
        with pytest.raises(errors.InvalidConfigurationException, match="a/b"):
            future.result()

    @pytest.mark.parametrize(
        "change",
        [
            {"message": "other"},
            {"topic_partition": TopicPartition("orders", 1)},
            {"stored": Stored.YES},
            {"api": "Fetch"},
            {"group": Group.NONE},
            {"code": codes.INVALID_TIMESTAMP},
            {"culprits": (Culprit(0, codes.INVALID_RECORD, ""),)},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_each_fact_counts_in_a_comparison(self, change: dict[str, Any]) -> None:
        facts: dict[str, Any] = {"message": "why", "topic_partition": ORDERS_0, "stored": Stored.NO, "api": "Produce"}
        assert errors.InvalidRecordException(**facts) == errors.InvalidRecordException(**facts)
        assert errors.InvalidRecordException(**facts) != errors.InvalidRecordException(**{**facts, **change})

    def test_the_class_counts_too(self) -> None:
        assert errors.InvalidRecordException("x", code=codes.INVALID_RECORD) != errors.InvalidTopicException("x", code=codes.INVALID_RECORD)
        assert errors.KafkaException("x") != Exception("x")


def culprits(*indices: int, code: ErrorCode = codes.INVALID_RECORD) -> list[Culprit]:
    return [Culprit(index, code, f"reason {index}") for index in indices]


class TestText:
    """What was refused, where, seen and allowed value, whether stored, and what happens next; on one line."""

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (
                exception_for(
                    codes.INVALID_TIMESTAMP,
                    message="timestamp 1700000000000 ms is 7200001 ms ahead of the broker, limit 3600000 ms",
                    topic_partition=ORDERS_0,
                    culprits=culprits(3, code=codes.INVALID_TIMESTAMP),
                    api="Produce",
                ),
                "Produce for orders-0, record 3: INVALID_TIMESTAMP (32): timestamp 1700000000000 ms is 7200001 ms ahead of the broker, "
                "limit 3600000 ms; not stored; correct the data or the configuration, the producer stays usable",
            ),
            (
                exception_for(codes.INVALID_RECORD, topic_partition=ORDERS_0, culprits=culprits(3, 7)),
                "orders-0, records 3 and 7: INVALID_RECORD (87): reason 3; reason 7; not stored; "
                "correct the data or the configuration, the producer stays usable",
            ),
            (
                exception_for(codes.REQUEST_TIMED_OUT, message="no answer for 30000 ms.", api="Produce"),
                "Produce: REQUEST_TIMED_OUT (7): no answer for 30000 ms; possibly stored; if it is sent again, it may be stored twice",
            ),
            (
                exception_for(codes.INVALID_TXN_STATE, message="not in the transaction", topic_partition=ORDERS_0, api="Produce"),
                "Produce for orders-0: INVALID_TXN_STATE (48): not in the transaction; not stored; "
                "abort the transaction and go on with the same producer",
            ),
            (
                exception_for(codes.PRODUCER_FENCED, message="epoch 3 is older than 4", api="EndTxn"),
                "EndTxn: PRODUCER_FENCED (90): epoch 3 is older than 4; close this producer and start a new one",
            ),
            (
                exception_for(codes.TOPIC_ALREADY_EXISTS, message="orders", api="CreateTopics"),
                "CreateTopics: TOPIC_ALREADY_EXISTS (36): orders",
            ),
            (
                exception_for(codes.by_number(200), message="?", api="Produce"),
                "Produce: UNKNOWN_200: ?; possibly stored; close this producer and start a new one",
            ),
            (
                exception_for(codes.UNKNOWN_SERVER_ERROR, message="?", api="CreateTopics"),
                "CreateTopics: UNKNOWN_SERVER_ERROR (-1): ?",
            ),
            (
                exception_for(codes.NOT_CONTROLLER, message="ask node 2", api="CreateTopics"),
                "CreateTopics: NOT_CONTROLLER (41): ask node 2; it may be tried again",
            ),
            (
                errors.TimeoutException("no broker reachable at localhost:9092, tried for 10000 ms: refused"),
                "REQUEST_TIMED_OUT (7): no broker reachable at localhost:9092, tried for 10000 ms: refused; it may be tried again",
            ),
            (
                errors.SaslAuthenticationException("b:1: who is that"),  # Of a connection: a consumer's as well.
                "SASL_AUTHENTICATION_FAILED (58): b:1: who is that; correct the data or the configuration",
            ),
            (
                exception_for(codes.INCONSISTENT_REPLICATION_FACTOR, message="INCONSISTENT_REPLICATION_FACTOR: 1 of 2.", api="Metadata"),
                "Metadata: INCONSISTENT_REPLICATION_FACTOR (40): 1 of 2",
            ),
            (
                exception_for(codes.NOT_ENOUGH_REPLICAS, message="CONCURRENT_TRANSACTIONS: the last one is ending", api="Metadata"),
                "Metadata: NOT_ENOUGH_REPLICAS (19): CONCURRENT_TRANSACTIONS: the last one is ending; it may be tried again",
            ),
            (errors.ConfigException("option linger.ms cannot be -1"), "option linger.ms cannot be -1"),
        ],
        ids=lambda value: value.name if isinstance(value, errors.KafkaException) else "",
    )
    def test_line(self, error: errors.KafkaException, text: str) -> None:
        assert str(error) == text

    def test_culprits_with_another_code_are_not_in_the_location(self) -> None:
        error = exception_for(
            codes.TRANSACTION_ABORTABLE, message="not at fault", topic_partition=ORDERS_0, culprits=culprits(3), api="Produce"
        )
        assert str(error).startswith("Produce for orders-0: TRANSACTION_ABORTABLE (120): not at fault; ")

    def test_many_culprits_are_counted(self) -> None:
        text = str(exception_for(codes.INVALID_RECORD, culprits=culprits(*range(100))))
        assert text.startswith(
            "records 0, 1, 2, 3, 4 and 95 more: INVALID_RECORD (87): "
            "reason 0; reason 1; reason 2; reason 3; reason 4; and 95 other reasons;"
        )

    def test_a_broker_s_message_that_begins_with_the_name_loses_it(self) -> None:
        """Who prints the message, as rejected rows and causes do, has the name beside it."""
        error = exception_for(codes.INCONSISTENT_REPLICATION_FACTOR, message="INCONSISTENT_REPLICATION_FACTOR: 1 of 2")
        assert (error.name, error.message) == ("INCONSISTENT_REPLICATION_FACTOR", "1 of 2")

    def test_equal_reasons_appear_once(self) -> None:
        same = [Culprit(index, codes.INVALID_COMPACTION_KEY, "the key is null") for index in range(9)]
        assert exception_for(codes.INVALID_COMPACTION_KEY, culprits=same).message == "the key is null"

    def test_culprits_without_reasons_use_the_text_of_the_code(self) -> None:
        silent = [Culprit(0, codes.INVALID_RECORD, "")]
        assert exception_for(codes.INVALID_RECORD, culprits=silent).message == codes.INVALID_RECORD.text

    @given(st.text(max_size=3000), st.lists(st.integers(0, 9), max_size=8))
    def test_always_one_line_of_bounded_length(self, message: str, indices: list[int]) -> None:
        error = exception_for(codes.INVALID_RECORD, message=message, culprits=culprits(*indices), topic_partition=ORDERS_0)
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < exceptions.TEXT_CHARACTERS_MAX + 300
