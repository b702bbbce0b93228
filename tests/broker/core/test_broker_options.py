"""Numbers and names of the broker's options and its topics': Kafka's bounds, and what is offered for a name of the other kind."""

from __future__ import annotations

import pytest

from chaffinch.broker.core import options
from chaffinch.broker.core.topics.topic_options import TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME, topic_defaults
from chaffinch.errors import ConfigException
from chaffinch.settings import LONG_MAX

INT_MAX = 2**31 - 1
# Kafka's options of 32 bits (KafkaConfig, GroupCoordinatorConfig, TransactionStateManagerConfig, LogConfig).
OF_32_BITS = [
    "default.replication.factor",
    "fetch.max.bytes",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    "log.roll.jitter.hours",
    "max.connections",
    "max.incremental.fetch.session.cache.slots",
    "message.max.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offset.metadata.max.bytes",
    "offsets.retention.minutes",
    "producer.id.expiration.check.interval.ms",
    "producer.id.expiration.ms",
    "socket.request.max.bytes",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
    "log.segment.bytes",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
]


@pytest.mark.parametrize("name", OF_32_BITS)
def test_numbers_of_32_bits(name: str) -> None:
    assert options.BROKER_OPTIONS.parse({name: str(INT_MAX)})[name] == INT_MAX
    with pytest.raises(ConfigException, match=f"option {name} cannot be .*at most {INT_MAX}"):
        options.parse({name: str(INT_MAX + 1)})


def test_no_number_has_more_than_64_bits() -> None:
    whole = [option for option in (*options.BROKER_OPTIONS.options, *TOPIC_OPTIONS.options) if option.kind == "int"]
    assert len(whole) > 50
    for option in whole:
        with pytest.raises(ConfigException, match=f"option {option.name} cannot be"):
            option.parse("9" * 26)
    assert TOPIC_OPTIONS_BY_NAME["retention.ms"].parse(str(LONG_MAX)) == LONG_MAX


@pytest.mark.parametrize("coarser", ["log.retention.hours", "log.retention.minutes"])
def test_a_negative_retention_is_none_in_any_unit(coarser: str) -> None:
    assert topic_defaults(options.parse({coarser: -5}))["retention.ms"] == -1


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({"log.retention.ms": 0}, True),
        ({"log.retention.minutes": 0, "log.retention.hours": 5}, True),
        ({"log.retention.hours": 0}, True),
        ({"log.retention.hours": 0, "log.retention.ms": 1}, False),
    ],
)
def test_no_retention_at_all_is_no_default(given: dict[str, int], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(ConfigException, match="cannot be 0"):
            options.parse(given)
    else:
        assert topic_defaults(options.parse(given))["retention.ms"] == 1


def test_session_timeouts_that_no_member_could_have_are_refused() -> None:
    text = r"^group.min.session.timeout.ms=9000 is above group.max.session.timeout.ms=8999: no member could join$"
    with pytest.raises(ConfigException, match=text):
        options.parse({"group.min.session.timeout.ms": 9000, "group.max.session.timeout.ms": 8999})
    with pytest.raises(ConfigException, match=r"group.min.session.timeout.ms=6000 is above group.max.session.timeout.ms=5999"):
        options.parse({"group.max.session.timeout.ms": 5999})
    options.parse({"group.max.session.timeout.ms": 6000})


@pytest.mark.parametrize(
    ("topic", "broker"),
    [
        ("max.message.bytes", "message.max.bytes"),
        ("delete.retention.ms", "log.cleaner.delete.retention.ms"),
        ("segment.ms", "log.roll.ms"),
        ("retention.ms", "log.retention.ms"),
    ],
)
def test_a_name_of_the_other_kind_is_answered_with_the_right_one(topic: str, broker: str) -> None:
    for parse, given, wanted in ((options.parse, topic, broker), (TOPIC_OPTIONS.parse, broker, topic)):
        for spelling in (given, given.replace(".", "_")):
            with pytest.raises(ConfigException, match=f"^unknown option '{spelling}': the nearest known one is '{wanted}'$"):
                parse({spelling: 1})
