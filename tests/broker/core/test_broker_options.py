"""Numbers and names of the broker's options and its topics': Kafka's bounds, and what is offered for a name of the other kind."""

from __future__ import annotations

import pytest

from chaffinch.broker.core import kafka_options, options
from chaffinch.broker.core.topics.topic_options import TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME, topic_defaults
from chaffinch.errors import ConfigException
from chaffinch.settings import LONG_MAX

INT_MAX = 2**31 - 1
OF_32_BITS = [
    option.name
    for option in options.BROKER_OPTIONS.options
    if (option.kind, kafka_options.TYPES.get(option.name)) == ("int", "int") and (option.maximum is None or option.maximum >= INT_MAX)
]


@pytest.mark.parametrize("name", OF_32_BITS)
def test_numbers_above_32_bits_are_refused(name: str) -> None:
    assert options.BROKER_OPTIONS.parse({name: str(INT_MAX)})[name] == INT_MAX
    with pytest.raises(ConfigException, match=f"option {name} cannot be .*at most {INT_MAX}"):
        options.parse({name: str(INT_MAX + 1)})


def test_numbers_above_64_bits_are_refused() -> None:
    request_error = [option for option in (*options.BROKER_OPTIONS.options, *TOPIC_OPTIONS.options) if option.kind == "int"]
    assert len(request_error) > 50
    for option in request_error:
        with pytest.raises(ConfigException, match=f"option {option.name} cannot be"):
            option.parse("9" * 26)
    assert TOPIC_OPTIONS_BY_NAME["retention.ms"].parse(str(LONG_MAX)) == LONG_MAX


@pytest.mark.parametrize("coarser", ["log.retention.hours", "log.retention.minutes"])
def test_negative_retention_means_unlimited_in_any_unit(coarser: str) -> None:
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
def test_zero_default_retention_is_refused(given: dict[str, int], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(ConfigException, match="cannot be 0"):
            options.parse(given)
    else:
        assert topic_defaults(options.parse(given))["retention.ms"] == 1


def test_contradicting_session_timeout_limits_are_refused() -> None:
    text = r"^group.min.session.timeout.ms=9000 is above group.max.session.timeout.ms=8999: no member could join$"
    with pytest.raises(ConfigException, match=text):
        options.parse({"group.min.session.timeout.ms": 9000, "group.max.session.timeout.ms": 8999})
    with pytest.raises(ConfigException, match=r"group.min.session.timeout.ms=6000 is above group.max.session.timeout.ms=5999"):
        options.parse({"group.max.session.timeout.ms": 5999})
    options.parse({"group.max.session.timeout.ms": 6000})


CONSUMER = "group.consumer."
HEARTBEAT, SESSION = "heartbeat.interval.ms", "session.timeout.ms"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({SESSION: 44_999}, "min.session.timeout.ms=45000 is above group.consumer.session.timeout.ms=44999"),
        ({SESSION: 60_001}, "session.timeout.ms=60001 is above group.consumer.max.session.timeout.ms=60000"),
        ({HEARTBEAT: 4999}, "min.heartbeat.interval.ms=5000 is above group.consumer.heartbeat.interval.ms=4999"),
        ({HEARTBEAT: 15_001}, "heartbeat.interval.ms=15001 is above group.consumer.max.heartbeat.interval.ms=15000"),
        ({f"min.{SESSION}": 60_001}, "min.session.timeout.ms=60001 is above group.consumer.session.timeout.ms=45000"),
        ({f"max.{HEARTBEAT}": 4999}, "heartbeat.interval.ms=5000 is above group.consumer.max.heartbeat.interval.ms=4999"),
        ({f"min.{SESSION}": 1, SESSION: 5000}, "heartbeat.interval.ms=5000 is not below group.consumer.session.timeout.ms=5000"),
        ({f"min.{SESSION}": 1, SESSION: 5001}, ""),
        ({SESSION: 60_000, HEARTBEAT: 15_000}, ""),
        ({f"max.{SESSION}": 60_001, SESSION: 60_001}, ""),
    ],
    ids=str,
)
def test_contradicting_consumer_group_timings_are_refused(given: dict[str, int], says: str) -> None:
    """The rules of GroupCoordinatorConfig."""
    settings = {CONSUMER + name: value for name, value in given.items()}
    if says:
        with pytest.raises(ConfigException, match=f"^{CONSUMER}{says}: [a-z ]+$"):
            options.parse(settings)
    else:
        options.parse(settings)


def test_all_contradictions_are_reported_at_once() -> None:
    given = {CONSUMER + HEARTBEAT: 999_999, CONSUMER + SESSION: 1000, "num.partitions": 10_001}
    with pytest.raises(ConfigException) as refused:
        options.parse(given)
    assert all(f"{name}={value}" in str(refused.value) for name, value in given.items())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("nothing", ["", " ", ",", [], ()], ids=repr)
def test_empty_list_of_assignors_is_refused(nothing: object) -> None:
    with pytest.raises(ConfigException, match=r"group\.consumer\.assignors.*one of uniform, range"):
        options.parse({"group.consumer.assignors": nothing})
    options.parse({"group.consumer.assignors": "range"})


@pytest.mark.parametrize("without", ["consumer", "", []], ids=repr)
def test_group_protocols_without_classic_are_refused(without: object) -> None:
    with pytest.raises(ConfigException, match=r"^group\.coordinator\.rebalance\.protocols=(consumer)? lacks classic: "):
        options.parse({"group.coordinator.rebalance.protocols": without})
    options.parse({"group.coordinator.rebalance.protocols": "consumer,classic"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"log.cleaner.min.compaction.lag.ms": 10, "log.cleaner.max.compaction.lag.ms": 9},
            "min.compaction.lag.ms=10 is above .*max.*=9: no",
        ),
        ({"log.cleaner.min.compaction.lag.ms": 10, "log.cleaner.max.compaction.lag.ms": 10}, ""),
        ({"log.cleaner.min.compaction.lag.ms": LONG_MAX}, ""),
        ({"num.partitions": 10_001}, "^num.partitions=10001 is above 10000"),
        ({"num.partitions": 10_000}, ""),
    ],
    ids=str,
)
def test_contradicting_topic_defaults_are_refused(given: dict[str, int], says: str) -> None:
    if says:
        with pytest.raises(ConfigException, match=says):
            options.parse(given)
    else:
        options.parse(given)


@pytest.mark.parametrize(
    ("topic", "broker"),
    [
        ("max.message.bytes", "message.max.bytes"),
        ("delete.retention.ms", "log.cleaner.delete.retention.ms"),
        ("segment.ms", "log.roll.ms"),
        ("retention.ms", "log.retention.ms"),
    ],
)
def test_option_name_of_the_other_kind_gets_a_suggestion(topic: str, broker: str) -> None:
    for parse, given, expected in ((options.parse, topic, broker), (TOPIC_OPTIONS.parse, broker, topic)):
        for name in (given, given.replace(".", "_")):
            with pytest.raises(ConfigException, match=f"^unknown option '{name}': the nearest known one is '{expected}'$"):
                parse({name: 1})
