"""Broker options, under Apache Kafka's names if Kafka has them, with the defaults of Apache Kafka 4.3.

Chaffinch's own options come first in the table. Options that Kafka knows and that have no effect here are accepted, stored, shown, and
logged once, unless that would be unsafe: see `kafka_options.py`. Topic options: see `topics/topic_options.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from chaffinch.broker.core import kafka_options
from chaffinch.broker.core.groups.assignors import ASSIGNORS
from chaffinch.broker.core.groups.group_options import BROKER_GROUP_OPTIONS, CLASSIC
from chaffinch.broker.core.security.options import SECURITY_OPTIONS
from chaffinch.broker.core.topics.creation_rules import PARTITIONS_PER_REQUEST_MAX
from chaffinch.broker.core.topics.registry import ACCEPT_LOSS
from chaffinch.broker.core.topics.topic_options import BROKER_SYNONYMS, TOPIC_OPTIONS_BY_NAME, WITH_EFFECT, topic_defaults
from chaffinch.errors import ConfigException
from chaffinch.settings import INT_MAX, Option, OptionTable, Settings, join_errors

_OWN = (
    Option(
        "error.numbering",
        "string",
        "apache",
        "Numbering of the errors that KIPs introduced: apache is safe with every client, kip uses the numbers in the KIPs.",
        choices=("apache", "kip"),
    ),
    Option(
        "min.insync.replicas.policy",
        "string",
        "kip579",
        "Response to acks=all on a topic whose min.insync.replicas exceeds its replication "
        "factor: kip579 is an error that is not retried, legacy as before Kafka 3.7, capped as since 3.7.",
        choices=("kip579", "legacy", "capped"),
    ),
    Option(
        "flush.policy",
        "string",
        "os",
        "Durability of an acknowledged record: with os it survives a killed process, with always also a power failure.",
        choices=("os", "always"),
    ),
    Option(
        ACCEPT_LOSS,
        "bool",
        False,
        "Start although files or records of the data directory are missing, without them, and log what is lost. For one start.",
    ),
    Option(
        "connections.max.unfinished.ms",
        "int",
        60_000,
        "A connection whose request stays incomplete for longer is closed; -1 for never, 0 for a fraction of a second.",
        minimum=-1,
    ),
    Option(
        "connections.max.unread.bytes",
        "int",
        4 << 20,
        "A client with this many unread response bytes is not served any further; one response may exceed it.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "connections.max.unread.ms",
        "int",
        60_000,
        "A client that reads none of its responses for longer is disconnected; -1 for never, 0 for a fraction of a second.",
        minimum=-1,
    ),
    Option(
        "socket.busy.poll.us",
        "int",
        50,
        "How long the broker polls after a response, for clients that wait for each response: it need not be woken, but uses up to "
        "this much more CPU time. If no request arrives, or others need the CPU, it polls after 1 response of 256. "
        "0 for never, the default of EmbeddedBroker.",
        minimum=0,
        maximum=1_000_000,
    ),
    # With the system default of some megabytes a fetch response takes half as long again: none of it is still in the CPU cache when it is
    # read. With a third of this size the broker is woken three times as often while a client reads.
    Option(
        "socket.send.buffer.bytes",
        "int",
        300_000,
        "Requested socket send buffer of a connection: more for clients with a high latency that fetch much; -1 for the system default.",
        minimum=-1,
        maximum=INT_MAX,
    ),
    Option("max.decompressed.bytes", "int", 128 << 20, "Largest decompressed size of a batch.", minimum=1, maximum=INT_MAX),
)

_KAFKA = (
    Option("auto.create.topics.enable", "bool", True, "Whether a metadata request for an unknown topic creates it."),
    Option(
        "auto.leader.rebalance.enable",
        "bool",
        True,
        "Whether leaderships return to the preferred replica some time after its node has started again.",
    ),
    Option(
        "connections.max.idle.ms",
        "int",
        600_000,
        "Idle connections are closed after this time; -1 for never, 0 for a fraction of a second.",
        minimum=-1,
    ),
    Option("default.replication.factor", "int", 1, "Replication factor of topics created without one.", minimum=1, maximum=INT_MAX),
    Option("delete.topic.enable", "bool", True, "Whether topics can be deleted."),
    Option("fetch.max.bytes", "int", 55 << 20, "Largest fetch response, whatever the client requests.", minimum=1024, maximum=INT_MAX),
    Option("log.cleaner.backoff.ms", "int", 15_000, "Interval at which logs that may need compaction are checked.", minimum=0),
    Option(
        "log.cleaner.dedupe.buffer.size",
        "int",
        128 << 20,
        "Memory for the keys of one compaction: each takes about 150 bytes plus its own. Keys that do not fit are left to the next one.",
        minimum=1 << 20,
    ),
    Option("log.cleaner.enable", "bool", True, "Whether logs are compacted at all."),
    Option("log.cleaner.io.max.bytes.per.second", "float", 1.7976931348623157e308, "Compaction reads no faster than this.", minimum=1),
    Option("log.retention.check.interval.ms", "int", 300_000, "Interval at which logs that may have old segments are checked.", minimum=1),
    Option(
        "log.retention.hours",
        "int",
        None,
        "Hours for retention.ms, where neither minutes nor milliseconds are set; below 0 for no limit.",
        maximum=INT_MAX,
    ),
    Option(
        "log.retention.minutes",
        "int",
        None,
        "Minutes for retention.ms, where no milliseconds are set; below 0 for no limit.",
        maximum=INT_MAX,
    ),
    Option("log.roll.hours", "int", None, "Hours for segment.ms, where no milliseconds are set.", minimum=1, maximum=INT_MAX),
    Option("log.roll.jitter.hours", "int", None, "Hours for segment.jitter.ms, where no milliseconds are set.", minimum=0, maximum=INT_MAX),
    Option(
        "leader.imbalance.check.interval.seconds",
        "int",
        300,
        "How long after a node has started again its preferred leaderships return to it.",
        minimum=1,
    ),
    Option("max.connections", "int", INT_MAX, "Connections beyond this are closed at once.", minimum=1, maximum=INT_MAX),
    Option(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1000,
        "Number of cached fetch sessions; further clients name all partitions in each fetch.",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "num.partitions",
        "int",
        1,
        f"Partitions of topics created without a number; {PARTITIONS_PER_REQUEST_MAX} at most, as many as one request may create.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "queued.max.request.bytes",
        "int",
        512 << 20,
        "Largest sum of incomplete large requests, beyond which clients that send more are disconnected; and of waiting "
        "requests, beyond which nothing more is read from clients that wait for a response. -1 for no limit.",
        minimum=-1,
        gap=0,
    ),
    Option(
        "queued.max.response.bytes",
        "int",
        512 << 20,
        "Largest sum of unread responses; beyond it the clients with the longest unread ones are disconnected. Before that, "
        "a fetch response carries at most an eighth of the remaining bytes, or a single batch.",
        minimum=1,
    ),
    Option(
        "replica.lag.time.max.ms",
        "int",
        30_000,
        "A declared node that stopped abruptly stays in the in-sync sets for this time.",
        minimum=1,
    ),
    Option("socket.request.max.bytes", "int", 100 << 20, "Largest request.", minimum=1, maximum=INT_MAX),
    Option(
        "producer.id.expiration.check.interval.ms",
        "int",
        600_000,
        "How often partitions are searched for idle producers.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "A partition forgets a producer that wrote nothing to it for this long and has no open transaction in it; "
        "from then on it accepts any sequence from it.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "transaction.max.timeout.ms",
        "int",
        900_000,
        "Longest transaction.timeout.ms that a producer may request.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "transaction.partition.verification.enable", "bool", True, "Whether a transactional batch needs its partition in the transaction."
    ),
    Option(
        "transaction.version",
        "int",
        2,
        "Kafka's feature level: with 2, clients that support it raise the epoch at every end of a transaction and add partitions by "
        "writing to them (KIP-890); with 0 and 1 they do not.",
        minimum=0,
        maximum=2,
    ),
    Option(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "Transactional ids unused for this long are removed.",
        minimum=1,
        maximum=INT_MAX,
    ),
)


def _topic_default(topic_option: str, broker_option: str) -> Option:
    """The broker option for the default of a topic option: same type and range, no default of its own."""
    option = TOPIC_OPTIONS_BY_NAME[topic_option]
    documentation = f"Default of the topic option {topic_option}. {option.documentation}"
    return replace(option, name=broker_option, default=None, documentation=documentation)


_TOPIC_DEFAULTS = tuple(_topic_default(topic, broker) for topic, broker in BROKER_SYNONYMS.items())
_OPTIONS = (*_OWN, *_KAFKA, *SECURITY_OPTIONS, *BROKER_GROUP_OPTIONS, *_TOPIC_DEFAULTS)

_OF_TOPICS: Final = "it is an option of topics: give it where a topic is created or altered"

BROKER_OPTIONS_BY_NAME: Mapping[str, Option] = {option.name: option for option in _OPTIONS}
IDLE_OPTIONS_BY_NAME: Mapping[str, Option] = kafka_options.idle_options(BROKER_OPTIONS_BY_NAME.keys())
"""Options that Apache Kafka knows and that have no effect here."""
_EVERY: Final = {**BROKER_OPTIONS_BY_NAME, **IDLE_OPTIONS_BY_NAME}

BROKER_OPTIONS = OptionTable(
    _OPTIONS,
    without_effect=IDLE_OPTIONS_BY_NAME.values(),
    names_elsewhere=BROKER_SYNONYMS,
    hints={name: _OF_TOPICS for name in TOPIC_OPTIONS_BY_NAME if name not in BROKER_SYNONYMS},
    family=lambda name: kafka_options.of_family(name, _EVERY),
)

WITHOUT_EFFECT_ON_TOPICS = frozenset(broker for topic, broker in BROKER_SYNONYMS.items() if topic not in WITH_EFFECT)
"""Defaults of topic options that are stored and shown, but have no effect."""

DYNAMIC = frozenset({"min.insync.replicas.policy", "auto.create.topics.enable", "num.partitions", "default.replication.factor",
                     "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second", "max.connections",
                     "producer.id.expiration.ms", "transaction.partition.verification.enable", *BROKER_SYNONYMS.values()})  # fmt: skip
"""Options with an effect that IncrementalAlterConfigs may change at run time."""


def find(name: str) -> Option | None:
    """The option of this name, with or without an effect."""
    return _EVERY.get(name) or kafka_options.of_family(name, _EVERY)


def is_idle(name: str) -> bool:
    """Whether an accepted option has no effect."""
    return name not in BROKER_OPTIONS_BY_NAME or name in WITHOUT_EFFECT_ON_TOPICS


def may_change(name: str) -> bool:
    """Whether IncrementalAlterConfigs may change this option at run time."""
    return name in DYNAMIC or (name not in BROKER_OPTIONS_BY_NAME and kafka_options.changes_while_running(name))


def default_of(option: Option) -> Any:
    """An option's default; for the broker's defaults of topic options that of the topic option."""
    if option.default is not None or option.name not in _TOPIC_OPTION_BY_SYNONYM:
        return option.default
    return TOPIC_OPTIONS_BY_NAME[_TOPIC_OPTION_BY_SYNONYM[option.name]].default


_TOPIC_OPTION_BY_SYNONYM = {broker: topic for topic, broker in BROKER_SYNONYMS.items()}


def parse(options: Mapping[str, Any] | None = None, **keywords: Any) -> Settings:
    """Parse broker settings. Raises ConfigException for an unknown name (naming the most similar one), an invalid value, or contradictory
    options.
    """
    settings = BROKER_OPTIONS.parse(options, **keywords)
    wrong = [
        *contradictions({**settings.ignored, **settings}),
        *kafka_options.unprotected_listeners(settings, settings.ignored),
    ]
    if wrong:
        raise ConfigException(join_errors(wrong))
    return settings


def contradictions(settings: Mapping[str, Any]) -> list[str]:
    """Errors in combinations of options that are individually valid."""
    return [*_shortcomings(settings), *kafka_options.missing_flushes(settings), *(text for rule in _RULES for text in rule.fault(settings))]


def _shortcomings(settings: Mapping[str, Any]) -> Iterator[str]:
    if topic_defaults(settings).get("retention.ms") == 0:  # A topic's own value may be 0 (KafkaConfig.scala).
        yield "log.retention.ms, or the minutes or hours in its place, cannot be 0: at least 1, or below 0 for no limit"
    if not settings["group.consumer.assignors"]:
        yield f"group.consumer.assignors is empty: it must name at least one of {', '.join(ASSIGNORS)}"
    protocols = settings["group.coordinator.rebalance.protocols"]
    if CLASSIC not in protocols:  # As in KafkaConfig.scala.
        yield f"group.coordinator.rebalance.protocols={','.join(protocols)} lacks {CLASSIC}: classic groups cannot be turned off"
    if settings["num.partitions"] > PARTITIONS_PER_REQUEST_MAX:
        most = f"{PARTITIONS_PER_REQUEST_MAX}, the most that one request may create"
        yield f"num.partitions={settings['num.partitions']} is above {most}: topics would need an explicit number of partitions"


@dataclass(frozen=True, slots=True)
class _Rule:
    """The first option must be at most as large as the second, or smaller; `else_`: the consequence otherwise."""

    lesser: str
    greater: str
    else_: str
    may_be_equal: bool = True

    def fault(self, settings: Mapping[str, Any]) -> Iterator[str]:
        lesser, greater = (_value(settings, name) for name in (self.lesser, self.greater))
        if lesser > greater or (lesser == greater and not self.may_be_equal):
            relation = "above" if self.may_be_equal else "not below"
            yield f"{self.lesser}={lesser} is {relation} {self.greater}={greater}: {self.else_}"


def _value(settings: Mapping[str, Any], name: str) -> Any:
    return default_of(BROKER_OPTIONS_BY_NAME[name]) if settings[name] is None else settings[name]


_NOT_THEIRS: Final = "the default would be outside the range that groups may set"
_CONSUMER: Final = "group.consumer"
_RULES: Final = (
    _Rule("group.min.session.timeout.ms", "group.max.session.timeout.ms", "no member could join"),
    # From GroupCoordinatorConfig.
    *(
        rule
        for name in ("heartbeat.interval.ms", "session.timeout.ms")
        for rule in (
            _Rule(f"{_CONSUMER}.min.{name}", f"{_CONSUMER}.{name}", _NOT_THEIRS),
            _Rule(f"{_CONSUMER}.{name}", f"{_CONSUMER}.max.{name}", _NOT_THEIRS),
        )
    ),
    _Rule(
        f"{_CONSUMER}.heartbeat.interval.ms",
        f"{_CONSUMER}.session.timeout.ms",
        "members would be removed between two heartbeats",
        may_be_equal=False,
    ),
    _Rule("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", "no topic could be created"),
)
