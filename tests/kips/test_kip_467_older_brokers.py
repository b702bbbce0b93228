"""KIP-135 and KIP-579 recognised by the producer against brokers that do not implement them (decisions 2, 19 and 21).

Scenarios read as in `test_kip_467_client.py`.
"""

from __future__ import annotations

import pytest

from chaffinch.errors import (
    CorruptRecordException,
    InconsistentReplicationFactorException,
    InvalidCompactionKeyException,
    InvalidRecordException,
    codes,
)
from chaffinch.protocol.messages.describe_configs import DescribeConfigsRequest
from tests.kips.refused_batches import TIMESTAMP, rejected
from tests.producer.core.rig import KEYLESS, LOST, NOT_SENT, OK, Answer, Rig

COMPACTED = {"cleanup.policy": "compact", "min.insync.replicas": "1"}


class TestOlderBrokers:
    """KIP-135 and KIP-579 recognised against brokers that do not implement them (decisions 2, 19, 21)."""

    def test_code_87_for_a_null_key_on_a_compacted_topic_becomes_45(self) -> None:
        rig = Rig(configs=COMPACTED)
        rig.send(f"a{KEYLESS}c")
        rig.answer(rejected(1))
        rig.answer(OK)
        assert isinstance(rig.error(KEYLESS), InvalidCompactionKeyException)
        assert rig.trace == [f"a{KEYLESS}c@0/0", "ac@0/0"]
        assert len([r for r in rig.requests if isinstance(r, DescribeConfigsRequest)]) == 1

    def test_code_32_for_a_null_key_next_to_a_wrong_timestamp_becomes_45(self) -> None:
        """Apache Kafka has one code for all culprits of a batch; only the text of each tells them apart."""
        rig = Rig(configs=COMPACTED)
        rig.send(f"a{KEYLESS}cd")
        rig.answer(rejected(1, 2, code=codes.INVALID_TIMESTAMP))
        rig.answer(OK)
        assert rig.fate(f"a{KEYLESS}cd") == ["0", "InvalidCompactionKeyException no", TIMESTAMP, "1"]

    def test_code_32_with_culprit_codes_is_kept(self) -> None:
        rig = Rig(configs=COMPACTED)
        rig.send(f"a{KEYLESS}c")
        rig.answer(rejected((1, codes.INVALID_TIMESTAMP), code=codes.INVALID_TIMESTAMP))
        rig.answer(OK)
        assert rig.fate(f"a{KEYLESS}c") == ["0", TIMESTAMP, "1"]
        assert not [r for r in rig.requests if isinstance(r, DescribeConfigsRequest)]

    def test_code_87_for_a_null_key_on_any_other_topic_is_kept(self) -> None:
        rig = Rig()
        rig.send(f"a{KEYLESS}")
        rig.answer(rejected(1))
        assert type(rig.error(KEYLESS)) is InvalidRecordException

    def test_code_87_for_a_record_with_key_requests_no_config(self) -> None:
        rig = Rig(configs=COMPACTED)
        rig.send("ab")
        rig.answer(rejected(1))
        assert not [r for r in rig.requests if isinstance(r, DescribeConfigsRequest)]

    @pytest.mark.parametrize("answer", [LOST, NOT_SENT])
    def test_unavailable_config_keeps_the_code(self, answer: str) -> None:
        rig = Rig(configs=COMPACTED, scripted={DescribeConfigsRequest: [answer]})
        rig.send(f"a{KEYLESS}")
        rig.answer(rejected(1))
        assert type(rig.error(KEYLESS)) is InvalidRecordException

    def test_later_batches_wait_for_the_config_response(self) -> None:
        rig = Rig(configs=COMPACTED)
        rig.hold.add(DescribeConfigsRequest)
        rig.send(f"a{KEYLESS}")
        rig.send("b")
        rig.answer(rejected(1))
        assert len(rig.trace) == 1
        rig.release()
        assert rig.trace[-1] == "a@0/0"

    def test_corrupt_message_of_a_broker_before_2_4_names_the_null_key(self) -> None:
        rig = Rig(configs=COMPACTED)
        rig.send(f"a{KEYLESS}c")
        rig.answer(Answer(codes.CORRUPT_MESSAGE))
        rig.answer(OK)
        assert isinstance(rig.error(KEYLESS), InvalidCompactionKeyException)
        assert rig.fate("ac") == ["0", "1"]

    def test_corrupt_message_without_null_key_is_kept(self) -> None:
        rig = Rig(configs=COMPACTED, options={"retries": 1})
        rig.send("ab")
        rig.answer(Answer(codes.CORRUPT_MESSAGE))
        rig.sleep(200)
        rig.answer(Answer(codes.CORRUPT_MESSAGE))
        assert isinstance(rig.error("a"), CorruptRecordException)

    def test_not_enough_replicas_above_the_replication_factor_is_not_retried(self) -> None:
        rig = Rig(configs={"cleanup.policy": "delete", "min.insync.replicas": "2"})
        rig.send("ab")
        rig.answer(Answer(codes.NOT_ENOUGH_REPLICAS))
        assert isinstance(rig.error("a"), InconsistentReplicationFactorException)
        assert "min.insync.replicas is 2" in rig.error("a").message
        assert len(rig.trace) == 1

    def test_code_40_with_the_name_in_its_message_is_recognized(self) -> None:
        rig = Rig()
        rig.send("a")
        rig.answer(Answer(codes.INCONSISTENT_REPLICATION_FACTOR, message="INCONSISTENT_REPLICATION_FACTOR: 3 of 1"))
        assert isinstance(rig.error("a"), InconsistentReplicationFactorException)

    def test_code_89_in_kip_numbering_is_recognized(self) -> None:
        rig = Rig()
        rig.send("a")
        rig.answer(Answer(codes.INCONSISTENT_REPLICATION_FACTOR, numbering="kip"))
        assert isinstance(rig.error("a"), InconsistentReplicationFactorException)
