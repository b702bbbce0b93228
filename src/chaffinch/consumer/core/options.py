"""Consumer options: names, defaults and ranges as in Apache Kafka 4.3 (ConsumerConfig.java, CommonClientConfigs.java).

Every option in `OPTIONS` has an effect. Names in `WITHOUT_EFFECT` are accepted so that configurations can be shared, and logged once.
Contradictions between options raise ConfigException here, before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from chaffinch.client import options as client_options
from chaffinch.client.arguments import illegal_topic_reason
from chaffinch.client.option_hints import CONSUMER_HINTS
from chaffinch.client.options import METADATA_OPTIONS, STRING_BYTES_MAX, connection_options
from chaffinch.errors import ConfigException
from chaffinch.identifiers import OFFSET_EARLIEST, OFFSET_LATEST
from chaffinch.protocol.messages.fetch import ISOLATION_LEVELS
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings

MS_MAX: Final = INT_MAX

TABLE_RECORDS: Final = 100_000
"""Row limit of `poll_table` unless max.poll.records is given: a table has a fixed cost, and little cost per row."""

OFFSET_RESET: Final = "auto.offset.reset"
NEW_PARTITIONS: Final = "auto.offset.reset.new.partitions"
ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
JAVA_ASSIGNORS: Final = {"Range": "range", "RoundRobin": "roundrobin", "Sticky": "sticky", "CooperativeSticky": "cooperative-sticky"}

_GROUP: Final = (
    Option(
        "group.id",
        "string",
        None,
        "consumer group that shares the partitions of topics and stores offsets; required for `subscribe` and commits",
        bytes_max=STRING_BYTES_MAX,
    ),
    Option(
        "group.instance.id",
        "string",
        None,
        "makes the member static: a restart within session.timeout.ms moves no partition",
        bytes_max=STRING_BYTES_MAX,
    ),
    Option("group.protocol", "string", "classic", "rebalance protocol: `classic` (`consumer`, KIP-848, is not supported)"),
    Option(
        "partition.assignment.strategy",
        "list",
        ("range", "cooperative-sticky"),
        "assignors, the preferred one first; all members must have one in common. With `cooperative-sticky` alone members keep"
        " reading while the group rebalances",
        choices=ASSIGNORS,
        synonyms=tuple((f"org.apache.kafka.clients.consumer.{name}Assignor", ours) for name, ours in JAVA_ASSIGNORS.items()),
    ),
    Option(
        "session.timeout.ms", "int", 45_000, "the group removes a member without a heartbeat after this time", minimum=1, maximum=MS_MAX
    ),
    Option("heartbeat.interval.ms", "int", 3_000, "time between heartbeats", minimum=1, maximum=MS_MAX),
    Option(
        "max.poll.interval.ms",
        "int",
        300_000,
        "a member that does not poll for this time leaves the group; also the limit for members to rejoin in a rebalance",
        minimum=1,
        maximum=MS_MAX,
    ),
)
_OFFSETS: Final = (
    Option("enable.auto.commit", "bool", True, "`poll` commits the records of earlier polls; off by default without a group.id"),
    Option("auto.commit.interval.ms", "int", 5_000, "time between automatic commits", minimum=0, maximum=MS_MAX),
    Option(
        OFFSET_RESET,
        "string",
        "latest",
        "where to start without a committed offset, or if it is out of range: `earliest`, `latest`, `by_duration:PT1H30M` (this long"
        " ago, ISO 8601), or `none`: an error",
    ),
    Option(
        NEW_PARTITIONS,
        "string",
        None,
        "the same for partitions added after this consumer first saw their topic, and for topics created later (KIP-1327). With"
        " `earliest`, records written before the consumer finds them are read as well; by default as auto.offset.reset",
    ),
)
_FETCHING: Final = (
    Option(
        "isolation.level",
        "string",
        "read_uncommitted",
        "`read_committed` returns only records of committed transactions",
        choices=tuple(ISOLATION_LEVELS),
    ),
    Option("fetch.min.bytes", "int", 1, "a broker responds when it has this many bytes", minimum=0, maximum=INT_MAX),
    Option("fetch.max.wait.ms", "int", 500, "longest time that a broker waits for fetch.min.bytes", minimum=0, maximum=MS_MAX),
    Option(
        "fetch.max.bytes",
        "int",
        50 << 20,
        "bytes of one fetch response; a single larger batch is still returned whole",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "max.partition.fetch.bytes",
        "int",
        1 << 20,
        "bytes per partition in one fetch response; up to twice as much is buffered per partition",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "max.poll.records",
        "int",
        500,
        f"maximum number of records that one `poll` returns; {TABLE_RECORDS} for `poll_table` unless set",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("check.crcs", "bool", True, "verify the checksum of every batch"),
    Option("client.rack", "string", "", "location of this client: brokers may redirect it to a nearby replica", bytes_max=STRING_BYTES_MAX),
    Option(
        "key.deserializer",
        "any",
        None,
        "a function from the bytes of a key to the key of the record, its dotted name, a deserializer of confluent-kafka, or `json`; "
        "not called for null or by `poll_table`",
    ),
    Option("value.deserializer", "any", None, "the same for values"),
)
_TOPICS: Final = (
    Option("allow.auto.create.topics", "bool", True, "allow brokers to create a missing topic"),
    Option("exclude.internal.topics", "bool", True, "patterns do not match internal topics"),
    Option("default.api.timeout.ms", "int", 60_000, "timeout of calls that have no timeout argument", minimum=0, maximum=MS_MAX),
)
OPTIONS: Final = (*connection_options("chaffinch-consumer"), *METADATA_OPTIONS, *_GROUP, *_OFFSETS, *_FETCHING, *_TOPICS)

WITHOUT_EFFECT: Final = client_options.WITHOUT_EFFECT | {
    "group.remote.assignor",
    "interceptor.classes",
    "share.acknowledgement.mode",
    "share.acquire.mode",
}

CONSUMER_OPTIONS: Final = OptionTable(OPTIONS, WITHOUT_EFFECT, hints=CONSUMER_HINTS)

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
"""A topic name."""
_DURATION: Final = re.compile(
    r"by_duration:P(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


class ResetStrategy(NamedTuple):
    """Where to start: `timestamp` is sent in ListOffsets; `ago_ms` is subtracted from the wall clock instead; both None: raise."""

    name: str
    timestamp: int | None = None
    ago_ms: int | None = None


EARLIEST: Final = ResetStrategy("earliest", OFFSET_EARLIEST)
LATEST: Final = ResetStrategy("latest", OFFSET_LATEST)
NONE: Final = ResetStrategy("none")
# Names in librdkafka, and in Kafka before 0.9.
FOREIGN_NAMES: Final = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}


def parse_options(mapping: Mapping[str, Any] | None = None, **keywords: Any) -> Settings:
    """The settings of a consumer. Raises ConfigException for an unknown name, an invalid value, or options that contradict each other."""
    if isinstance(mapping, str) and _NAME.fullmatch(mapping):  # Other values may be secret.
        raise ConfigException(f"options must be a mapping of names to values, not {mapping!r}: topics are given to subscribe()")
    settings = CONSUMER_OPTIONS.parse(mapping, **keywords)
    for check in (_check_group, _check_times):
        check(settings)
    reset_strategy(settings)
    new_partitions_strategy(settings)
    return settings


def reset_strategy(settings: Settings) -> ResetStrategy:
    """The strategy of auto.offset.reset; raises ConfigException for an invalid value."""
    return _parse_strategy(OFFSET_RESET, settings[OFFSET_RESET])


def new_partitions_strategy(settings: Settings) -> ResetStrategy | None:
    """The strategy of auto.offset.reset.new.partitions; None if it is not set."""
    text: str | None = settings[NEW_PARTITIONS]
    return None if text is None else _parse_strategy(NEW_PARTITIONS, text)


def _parse_strategy(option: str, text: str) -> ResetStrategy:
    simple = {strategy.name: strategy for strategy in (EARLIEST, LATEST, NONE)}.get(text.lower())
    if simple is not None:
        return simple
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        allowed = "one of earliest, latest, none, or by_duration: and an ISO 8601 duration as in by_duration:PT1H30M"
        hint = f"; {text!r} of other clients is {FOREIGN_NAMES[text.lower()]}" if text.lower() in FOREIGN_NAMES else ""
        raise ConfigException(f"option {option} cannot be {text!r}: it must be {allowed}{hint}")
    seconds = sum(float(number) * _SECONDS[unit] for unit, number in found.groupdict().items() if number)
    return ResetStrategy(text, ago_ms=int(seconds * 1000))


def auto_commits(settings: Settings) -> bool:
    """Whether polls commit. As in Kafka, the default requires a group.id."""
    return bool(settings["enable.auto.commit"]) and settings["group.id"] is not None


def _check_group(settings: Settings) -> None:
    if settings["group.protocol"].lower() != "classic":
        value = settings["group.protocol"]
        raise ConfigException(
            f"option group.protocol cannot be {value!r}: it must be classic; this client does not support the protocol of KIP-848"
        )
    for name in ("group.id", "group.instance.id"):
        if settings[name] == "":
            raise ConfigException(f"option {name} cannot be empty: leave it out")
    instance_id = settings["group.instance.id"]
    if instance_id is not None and illegal_topic_reason(instance_id) is not None:
        allowed = "letters, digits, '.', '_' and '-', at most 249 of them, and neither '.' nor '..'"
        raise ConfigException(f"option group.instance.id cannot be {instance_id!r}: it must be {allowed}, as the name of a topic")
    if settings["group.id"] is None and settings["group.instance.id"] is not None:
        raise ConfigException("option group.instance.id requires a group.id")
    if settings["group.id"] is None and "enable.auto.commit" in settings.given and settings["enable.auto.commit"]:
        raise ConfigException("option enable.auto.commit cannot be true without a group.id: offsets are committed for a group")
    strategies = settings["partition.assignment.strategy"]
    if not strategies or len(set(strategies)) < len(strategies):
        raise ConfigException(
            f"option partition.assignment.strategy cannot be {','.join(strategies)!r}: it must name one or more, each once"
        )


def _check_times(settings: Settings) -> None:
    heartbeat, session = settings["heartbeat.interval.ms"], settings["session.timeout.ms"]
    if heartbeat >= session:
        raise ConfigException(f"option heartbeat.interval.ms cannot be {heartbeat}: it must be below session.timeout.ms, {session}")
