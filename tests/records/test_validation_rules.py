"""Consistency of the rules' tables; tests/kips/test_kip_467_records.py tests each rule."""

from chaffinch.broker.core.counters import HELP
from chaffinch.records.kernels_reference import walk
from chaffinch.records.validation_policy import Origin
from chaffinch.records.validation_rules import (
    BATCH_RULES,
    BATCH_RULES_BY_ORIGIN,
    RECORD_SIZE_RULE,
    RULE_BY_REASON,
    TIMESTAMP_TYPE_RULE,
)


def test_every_counter_is_one_the_broker_has() -> None:
    records = {rule.counter for rule in (*RULE_BY_REASON.values(), TIMESTAMP_TYPE_RULE, RECORD_SIZE_RULE)}
    counters = ({rule.counter for rule in BATCH_RULES} | records) - {None}
    assert counters <= set(HELP)


def test_the_counters_of_the_kip_are_all_used() -> None:
    names = {rule.counter for rule in BATCH_RULES} | {rule.counter for rule in RULE_BY_REASON.values()}
    assert names >= {
        "NoKeyCompactedTopicRecordsPerSec",
        "InvalidMagicNumberRecordsPerSec",
        "InvalidMessageCrcRecordsPerSec",
        "NonIncreasingOffsetRecordsPerSec",
    }


def test_trusted_origins_have_fewer_rules() -> None:
    names = {origin: [rule.broken.__name__ for rule in rules] for origin, rules in BATCH_RULES_BY_ORIGIN.items()}
    assert names[Origin.REPLICATION] == ["magic_is_unknown", "magic_is_old", "crc_is_wrong"]
    assert names[Origin.COORDINATOR] == [*names[Origin.REPLICATION], "is_too_large", "codec_is_unknown"]
    assert len(names[Origin.CLIENT]) == len(BATCH_RULES)


def test_reasons_ascend_in_order_of_precedence() -> None:
    assert list(RULE_BY_REASON) == [walk.OFFSET_DELTA_WRONG, walk.KEY_MISSING, walk.TIMESTAMP_WRONG] == [1, 2, 3]
