"""The consumer's options: what is refused, and what others make of them."""

from typing import Any

import pytest

from chaffinch.consumer.core import options
from chaffinch.consumer.core.options import ResetStrategy, auto_commits, parse_options, reset_strategy
from chaffinch.errors import ConfigException

SERVERS = {"bootstrap.servers": "localhost:9092"}


@pytest.mark.parametrize(
    ("options_given", "text"),
    [
        ({"group.protocol": "consumer"}, "group.protocol cannot be 'consumer': it must be classic"),
        ({"group.id": ""}, "group.id cannot be empty"),
        ({"group.id": "g", "group.instance.id": ""}, "group.instance.id cannot be empty"),
        ({"group.id": "g", "group.instance.id": "shop 1"}, "group.instance.id cannot be 'shop 1': it must be letters, digits"),
        ({"group.instance.id": "i"}, "requires a group.id"),
        ({"enable.auto.commit": True}, "cannot be true without a group.id"),
        ({"partition.assignment.strategy": "ranges"}, "range, roundrobin, sticky, cooperative-sticky"),
        ({"partition.assignment.strategy": "range,range"}, "each once"),
        ({"partition.assignment.strategy": []}, "one or more"),
        ({"heartbeat.interval.ms": 45_000}, "must be below session.timeout.ms, 45000"),
        ({"auto.offset.reset": "oldest"}, "earliest, latest, none, or by_duration"),
        ({"auto.offset.reset": "by_duration:P"}, "ISO 8601"),
        ({"auto.offset.reset": "by_duration:-PT1H"}, "ISO 8601"),
        ({"auto.offset.reset": "smallest"}, "by_duration:PT1H30M; 'smallest' of other clients is earliest"),
        ({"partition.assignment.strategy": "org.example.OurAssignor"}, "range, roundrobin, sticky, cooperative-sticky"),
        ({"isolation.level": "serializable"}, "read_uncommitted, read_committed"),
        ({"max.poll.records": 0}, "at least 1"),
        ({"fetch.min.byte": 1}, "the nearest known one is 'fetch.min.bytes'"),
    ],
)
def test_invalid_options_are_rejected(options_given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        parse_options({**SERVERS, **options_given})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("earliest", options.EARLIEST),
        ("LATEST", options.LATEST),
        ("none", options.NONE),
        ("by_duration:PT1H30M", (None, 5_400_000)),
        ("by_duration:P2DT0.5S", (None, 172_800_500)),
    ],
)
def test_reset_strategy(text: str, strategy: ResetStrategy | tuple[None, int]) -> None:
    found = reset_strategy(parse_options({**SERVERS, "auto.offset.reset": text}))
    assert found == strategy if isinstance(strategy, options.ResetStrategy) else found[1:] == strategy


@pytest.mark.parametrize(
    ("options_given", "commits"), [({}, False), ({"group.id": "g"}, True), ({"group.id": "g", "enable.auto.commit": False}, False)]
)
def test_auto_commit_needs_a_group(options_given: dict[str, Any], commits: bool) -> None:
    assert auto_commits(parse_options({**SERVERS, **options_given})) is commits


@pytest.mark.parametrize("prefix", ["", "kafkashaded.", "com.example.shaded."])
def test_java_names_of_assignors(prefix: str) -> None:
    java = f"{prefix}org.apache.kafka.clients.consumer."
    options_given = f"{java}RangeAssignor,{java}CooperativeStickyAssignor,{java}RoundRobinAssignor, {java}StickyAssignor"
    found = parse_options({**SERVERS, "partition.assignment.strategy": options_given})["partition.assignment.strategy"]
    assert found == ("range", "cooperative-sticky", "roundrobin", "sticky")
    with pytest.raises(ConfigException, match="each once"):
        parse_options({**SERVERS, "partition.assignment.strategy": f"range,{java}RangeAssignor"})


def test_topic_instead_of_options_is_rejected() -> None:
    with pytest.raises(ConfigException, match=r"not 'orders': topics are given to subscribe\(\)"):
        parse_options("orders")  # type: ignore[arg-type]
    with pytest.raises(ConfigException, match=r"not a value of type str$"):
        parse_options("sasl.password=S3cret")  # type: ignore[arg-type]
