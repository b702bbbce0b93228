"""The table of error codes: complete, the same numbers as two other clients have, and its look-ups."""

import copy
import pickle
import re
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import KafkaError

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group, Stored

APACHE_ROWS = codes.ALL[:-2]

# What two independent clients call otherwise than Apache Kafka does today.
OLD_NAMES_KAFKA_PYTHON = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
}
OLD_NAMES_LIBRDKAFKA = {
    -1: "UNKNOWN",
    0: "NO_ERROR",
    2: "INVALID_MSG",
    3: "UNKNOWN_TOPIC_OR_PART",
    4: "INVALID_MSG_SIZE",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MSG_SIZE_TOO_LARGE",
    11: "STALE_CTRL_EPOCH",
    17: "TOPIC_EXCEPTION",
}
# kafka-python fails a corrupt batch and refreshes on 75; KIP-467 3.a retries the one, Apache Kafka's class tree says no for the other.
OTHER_RULES_KAFKA_PYTHON = {2, 75}


def test_every_number_from_minus_one_to_133_has_one_row() -> None:
    assert [row.number for row in APACHE_ROWS] == list(range(-1, 134))


def test_constants_are_named_as_their_rows() -> None:
    constants = {name: value for name, value in vars(codes).items() if isinstance(value, ErrorCode)}
    assert {name: row.name for name, row in constants.items()} == {name: name for name in constants}
    assert list(constants.values()) == list(codes.ALL)


def test_names_and_numbers_agree_with_kafka_python() -> None:
    classes: list[Any] = [error for error in vars(kafka.errors).values() if isinstance(error, type)]
    theirs = {error.errno: error for error in classes if issubclass(error, kafka.errors.BrokerResponseError) and error.errno is not None}
    compared = [row for row in APACHE_ROWS if row.number in theirs]
    assert len(compared) > 120
    for row in compared:
        error = theirs[row.number]
        assert OLD_NAMES_KAFKA_PYTHON.get(row.number, row.name) == error.message
        if row.number not in OTHER_RULES_KAFKA_PYTHON:
            assert (row.name, row.is_retriable) == (row.name, error.retriable)
            assert (row.name, row.refreshes_metadata) == (row.name, error.invalid_metadata)


def test_names_and_numbers_agree_with_librdkafka() -> None:
    theirs = {value: name for name in dir(KafkaError) if not name.startswith("_") and isinstance(value := getattr(KafkaError, name), int)}
    compared = [row for row in APACHE_ROWS if row.number in theirs]
    assert len(compared) > 110
    for row in compared:
        assert OLD_NAMES_LIBRDKAFKA.get(row.number, row.name) == theirs[row.number]


# The membership Apache Kafka 4.1 and later ship, by number, and the codes KIP-1050 leaves open with the group chosen for them.
GROUPS = {
    Group.REFRESH_RETRIABLE: {3, 5, 6, 9, 13, 15, 16, 56, 72, 74, 80, 83, 84, 100, 103},
    Group.RETRIABLE: {2, 7, 14, 19, 20, 41, 51, 70, 71, 75, 78, 88, 89, 106, 122, 123, 133},
    Group.APPLICATION_RECOVERABLE: {22, 25, 47, 49, 82, 90} | {-1, 8, 12, 24, 28, 42, 44, 69, 113},
    Group.INVALID_CONFIGURATION: {17, 18, 21, 29, 30, 31, 33, 34, 35, 38, 40, 43, 53, 58, 65, 87} | {10, 32, 50, 76},
    Group.TRANSACTION_ABORTABLE: {120} | {55},
}


def test_groups() -> None:
    by_group = {group: {row.number for row in APACHE_ROWS if row.group is group} for group in GROUPS}
    assert by_group == GROUPS


def test_the_errors_of_the_kips_are_invalid_configuration() -> None:
    for row in (codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY, codes.INCONSISTENT_REPLICATION_FACTOR, codes.INVALID_TIMESTAMP):
        assert row.group_produce is Group.INVALID_CONFIGURATION
        assert row.group_transaction is Group.INVALID_CONFIGURATION
        assert not row.is_retriable


def test_sequence_errors_are_in_no_group_and_only_one_code_depends_on_the_api() -> None:
    for row in (codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.DUPLICATE_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID):
        assert row.group_produce is Group.NONE
    seen_by_both = [row for row in codes.ALL if row.is_produce_code and row.is_transaction_code]
    assert [row.name for row in seen_by_both if row.group_produce is not row.group_transaction] == ["INVALID_TXN_STATE"]


def test_code_unknown_to_an_api_is_unclassified_there() -> None:
    assert codes.TOPIC_ALREADY_EXISTS.group is Group.NONE
    assert codes.TOPIC_ALREADY_EXISTS.group_produce is Group.APPLICATION_RECOVERABLE
    assert codes.NOT_CONTROLLER.group_produce is Group.RETRIABLE
    for row in codes.ALL:
        if not row.is_produce_code and row.group is Group.NONE and row is not codes.INVALID_TXN_STATE:
            assert row.group_produce is Group.APPLICATION_RECOVERABLE


MAY_COME_AFTER_THE_APPEND = {-1, 6, 7, 8, 9, 13, 20, 56}


class TestStored:
    """For an answer to Produce, "no" needs a proof that the broker decides it before it appends."""

    def test_codes_after_the_append_are_possibly_stored(self) -> None:
        rows = [row for row in APACHE_ROWS if row.is_produce_code]
        assert {row.number for row in rows if row.stored is Stored.POSSIBLY} == MAY_COME_AFTER_THE_APPEND
        assert {row.number for row in rows if row.stored is Stored.YES} == {46}

    def test_code_unknown_to_produce_is_possibly_stored(self) -> None:
        unexpected = [row for row in codes.ALL if not row.is_produce_code and row is not codes.NONE]
        assert {row.stored for row in unexpected} == {Stored.POSSIBLY}

    def test_culprits_are_not_stored(self) -> None:
        for row in (codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE):
            assert row.stored is Stored.NO


class TestNumbering:
    @pytest.mark.parametrize(
        ("name", "apache", "kip"),
        [
            ("INVALID_RECORD", 87, 85),
            ("INVALID_COMPACTION_KEY", 87, 45),
            ("INCONSISTENT_REPLICATION_FACTOR", 40, 89),
            ("INVALID_TIMESTAMP", 32, 32),
            ("CORRUPT_MESSAGE", 2, 2),
        ],
    )
    def test_number_on_the_wire(self, name: str, apache: int, kip: int) -> None:
        row = codes.by_name(name)
        assert (row.wire("apache"), row.wire("kip")) == (apache, kip)

    @pytest.mark.parametrize(
        ("number", "numbering", "has_culprits", "message", "name"),
        [
            (87, "apache", True, None, "INVALID_RECORD"),
            (87, "kip", True, None, "INVALID_RECORD"),
            (85, "apache", False, None, "NO_REASSIGNMENT_IN_PROGRESS"),
            (85, "kip", True, None, "INVALID_RECORD"),
            (85, "kip", False, None, "INVALID_RECORD"),
            (45, "apache", False, None, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
            (45, "apache", True, None, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
            (45, "kip", False, None, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
            (45, "kip", True, None, "INVALID_COMPACTION_KEY"),
            (89, "apache", False, None, "THROTTLING_QUOTA_EXCEEDED"),
            (89, "kip", False, None, "INCONSISTENT_REPLICATION_FACTOR"),
            (40, "apache", False, None, "INVALID_CONFIG"),
            (40, "apache", False, "retention.ms is negative", "INVALID_CONFIG"),
            (40, "apache", False, "INCONSISTENT_REPLICATION_FACTOR: 1 replica, 2 asked for", "INCONSISTENT_REPLICATION_FACTOR"),
            (0, "kip", False, None, "NONE"),
            (-1, "apache", False, None, "UNKNOWN_SERVER_ERROR"),
        ],
    )
    def test_row_of_a_number_on_the_wire(
        self, number: int, numbering: codes.Numbering, has_culprits: bool, message: str | None, name: str
    ) -> None:
        assert codes.by_number(number, numbering, has_culprits=has_culprits, message=message).name == name

    def test_every_row_comes_back_from_its_own_number(self) -> None:
        for row in APACHE_ROWS:
            assert codes.by_number(row.number) is row

    def test_rows_with_two_numbers_come_back_under_kip_numbering(self) -> None:
        for row in codes.ALL:
            if row.number != row.number_kip:
                assert codes.by_number(row.number_kip, "kip", has_culprits=True) is row


class TestUnknown:
    @pytest.mark.parametrize("number", [134, 200, 32767, -2, -32768])
    def test_keeps_its_number_and_is_application_recoverable(self, number: int) -> None:
        row = codes.by_number(number)
        assert (row.number, row.number_kip, row.name, row.is_known) == (number, number, f"UNKNOWN_{number}", False)
        assert row.group_produce is row.group_transaction is Group.APPLICATION_RECOVERABLE
        assert row.stored is Stored.POSSIBLY
        assert not row.is_retriable
        assert str(number) in row.text

    def test_one_object_per_number(self) -> None:
        assert codes.by_number(200) is codes.by_number(200, "kip", has_culprits=True)


class TestNames:
    def test_name_and_alias_have_one_row(self) -> None:
        assert codes.by_name("INVALID_RECORD") is codes.INVALID_RECORD
        assert codes.by_name("INCONSISTENT_REPLICA_CONFIGURATION") is codes.INCONSISTENT_REPLICATION_FACTOR

    @pytest.mark.parametrize(("wrong", "nearest"), [("INVALID_RECROD", "INVALID_RECORD"), ("not_leader", "NOT_LEADER_OR_FOLLOWER")])
    def test_unknown_name_error_suggests_the_nearest(self, wrong: str, nearest: str) -> None:
        with pytest.raises(KeyError, match=nearest):
            codes.by_name(wrong)


@pytest.mark.parametrize("row", [*codes.ALL, codes.by_number(200)], ids=lambda row: row.name)
class TestRows:
    def test_stays_the_same_object_through_pickle_and_copy(self, row: ErrorCode) -> None:
        assert pickle.loads(pickle.dumps(row)) is row
        assert copy.deepcopy(row) is row

    def test_is_frozen(self, row: ErrorCode) -> None:
        with pytest.raises(AttributeError):
            row.number = 1  # type: ignore[misc]

    def test_its_text_is_one_readable_line(self, row: ErrorCode) -> None:
        assert re.fullmatch(r"[^\n|]+\.", row.text)
        assert 8 < len(row.text) <= 170 or row is codes.NONE


def test_no_two_texts_are_equal() -> None:
    assert len({row.text for row in codes.ALL}) == len(codes.ALL)
