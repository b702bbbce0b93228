"""Broker options under Apache Kafka's names where Kafka has them, with the defaults of Apache Kafka 4.3.

Options of our own come first in the table. Options that Kafka knows and that have no effect here are accepted, stored, shown, and named
once in the log, unless that would be unsafe: see `kafka_options.py`. Topic options: see `topics/topic_options.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from chaffinch.broker.core import kafka_options
from chaffinch.broker.core.groups.assignors import ASSIGNORS
from chaffinch.broker.core.groups.group_options import CLASSIC, GROUP_OPTIONS
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
        "Numbers of the KIPs' errors: apache is safe with every client, kip is literal.",
        choices=("apache", "kip"),
    ),
    Option(
        "min.insync.replicas.policy",
        "string",
        "kip579",
        "Answer to acks=all on a topic whose min.insync.replicas exceeds its replication "
        "factor: kip579 refuses for good, legacy as before Kafka 3.7, capped as since.",
        choices=("kip579", "legacy", "capped"),
    ),
    Option(
        "flush.policy",
        "string",
        "os",
        "What an acknowledgement promises: os survives the death of the process, always also a power cut.",
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
        "A client that has so much to read yet is served no further; one answer may exceed it.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "connections.max.unread.ms",
        "int",
        60_000,
        "A client that reads nothing of its answers for longer is disconnected; -1 for never, 0 for a fraction of a second.",
        minimum=-1,
    ),
    Option(
        "socket.busy.poll.us",
        "int",
        50,
        "How long the broker stays awake after an answer, for clients that wait for it before they send more: it need not be woken, and "
        "takes up to so much more processor time. Where that is in vain, or others need the processor, it is done after 1 answer of 256. "
        "0 for never, the default of EmbeddedBroker.",
        minimum=0,
        maximum=1_000_000,
    ),
    # With the megabytes that the system takes by itself a fetch answer takes half as long again: nothing of it is in the processor's cache
    # any more when it is read. With a third of this the broker is woken three times as often while a client reads.
    Option(
        "socket.send.buffer.bytes",
        "int",
        300_000,
        "What the system is asked to keep of a connection's answers until they are read: more for clients that are far away and fetch "
        "much; -1 for what it takes itself.",
        minimum=-1,
        maximum=INT_MAX,
    ),
    Option("max.decompressed.bytes", "int", 128 << 20, "Largest size a batch may unpack to.", minimum=1, maximum=INT_MAX),
)

_KAFKA = (
    Option("auto.create.topics.enable", "bool", True, "Whether asking for the metadata of an unknown topic creates it."),
    Option(
        "auto.leader.rebalance.enable",
        "bool",
        True,
        "Whether leaderships go back to the preferred replica some time after its node came back.",
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
    Option("fetch.max.bytes", "int", 55 << 20, "Largest fetch answer, whatever the client asks for.", minimum=1024, maximum=INT_MAX),
    Option("log.cleaner.backoff.ms", "int", 15_000, "How often logs are looked at that may have to be compacted.", minimum=0),
    Option(
        "log.cleaner.dedupe.buffer.size",
        "int",
        128 << 20,
        "Memory for the keys of one compaction: each takes about 150 bytes and its own. What has no room is left to the next one.",
        minimum=1 << 20,
    ),
    Option("log.cleaner.enable", "bool", True, "Whether logs are compacted at all."),
    Option("log.cleaner.io.max.bytes.per.second", "float", 1.7976931348623157e308, "Compaction reads no faster than this.", minimum=1),
    Option("log.retention.check.interval.ms", "int", 300_000, "How often logs are looked at that may have old segments.", minimum=1),
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
        "How long after a node came back it leads again what it should lead.",
        minimum=1,
    ),
    Option("max.connections", "int", INT_MAX, "Connections beyond this are closed at once.", minimum=1, maximum=INT_MAX),
    Option(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1000,
        "Fetch sessions kept; clients beyond them name all partitions in each fetch.",
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
        "Largest sum of what has arrived of incomplete large requests, beyond which those who send more are disconnected; and of requests "
        "that wait, beyond which nothing more is read from those who wait for an answer. -1 for no limit.",
        minimum=-1,
        gap=0,
    ),
    Option(
        "queued.max.response.bytes",
        "int",
        512 << 20,
        "Largest sum of unread answers; beyond it those who have had something to read for longest are disconnected. Before that, "
        "an answer to a fetch carries at most an eighth of what is left of it, but for one batch.",
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
        "A partition forgets a producer that wrote nothing there for so long and has no open transaction there; "
        "from then on it takes any sequence from it.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "transaction.max.timeout.ms", "int", 900_000, "Longest transaction.timeout.ms a producer may ask for.", minimum=1, maximum=INT_MAX
    ),
    Option(
        "transaction.partition.verification.enable", "bool", True, "Whether a transactional batch needs its partition in the transaction."
    ),
    Option(
        "transaction.version",
        "int",
        2,
        "Kafka's feature: 2 has clients that know it raise the epoch at every end of a transaction and add partitions by writing to them "
        "(KIP-890), 1 and 0 not.",
        minimum=0,
        maximum=2,
    ),
    Option(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "Transactional ids unused for so long are forgotten.",
        minimum=1,
        maximum=INT_MAX,
    ),
)


def _topic_default(topic_option: str, broker_option: str) -> Option:
    """The broker's option that gives a topic option its default: same kind and range, no default of its own."""
    option = TOPIC_OPTIONS_BY_NAME[topic_option]
    documentation = f"Default of the topic option {topic_option}. {option.documentation}"
    return replace(option, name=broker_option, default=None, documentation=documentation)


_TOPIC_DEFAULTS = tuple(_topic_default(topic, broker) for topic, broker in BROKER_SYNONYMS.items())
_OPTIONS = (*_OWN, *_KAFKA, *SECURITY_OPTIONS, *GROUP_OPTIONS, *_TOPIC_DEFAULTS)

_OF_TOPICS: Final = "it is an option of topics: give it where a topic is created or altered"

BROKER_OPTIONS_BY_NAME: Mapping[str, Option] = {option.name: option for option in _OPTIONS}
IDLE_OPTIONS_BY_NAME: Mapping[str, Option] = kafka_options.idle_options(BROKER_OPTIONS_BY_NAME.keys())
"""Those that Apache Kafka knows and that change nothing here."""
_EVERY: Final = {**BROKER_OPTIONS_BY_NAME, **IDLE_OPTIONS_BY_NAME}

BROKER_OPTIONS = OptionTable(
    _OPTIONS,
    without_effect=IDLE_OPTIONS_BY_NAME.values(),
    names_elsewhere=BROKER_SYNONYMS,
    hints={name: _OF_TOPICS for name in TOPIC_OPTIONS_BY_NAME if name not in BROKER_SYNONYMS},
    family=lambda name: kafka_options.of_family(name, _EVERY),
)

WITHOUT_EFFECT_ON_TOPICS = frozenset(broker for topic, broker in BROKER_SYNONYMS.items() if topic not in WITH_EFFECT)
"""Defaults of topic options that are stored and shown, and change nothing."""

DYNAMIC = frozenset({"min.insync.replicas.policy", "auto.create.topics.enable", "num.partitions", "default.replication.factor",
                     "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second", "max.connections",
                     "producer.id.expiration.ms", "transaction.partition.verification.enable", *BROKER_SYNONYMS.values()})  # fmt: skip
"""Options with an effect that IncrementalAlterConfigs may change while the broker runs."""


def find(name: str) -> Option | None:
    """The option of this name, with or without an effect."""
    return _EVERY.get(name) or kafka_options.of_family(name, _EVERY)


def is_idle(name: str) -> bool:
    """Whether an option that is accepted changes nothing."""
    return name not in BROKER_OPTIONS_BY_NAME or name in WITHOUT_EFFECT_ON_TOPICS


def may_change(name: str) -> bool:
    """Whether IncrementalAlterConfigs may change this option while the broker runs."""
    return name in DYNAMIC or (name not in BROKER_OPTIONS_BY_NAME and kafka_options.changes_while_running(name))


def default_of(option: Option) -> Any:
    """An option's default; for the broker's defaults of topic options the topic option's own."""
    if option.default is not None or option.name not in _TOPIC_OPTION_BY_SYNONYM:
        return option.default
    return TOPIC_OPTIONS_BY_NAME[_TOPIC_OPTION_BY_SYNONYM[option.name]].default


_TOPIC_OPTION_BY_SYNONYM = {broker: topic for topic, broker in BROKER_SYNONYMS.items()}


def parse(options: Mapping[str, Any] | None = None, **keywords: Any) -> Settings:
    """Broker settings. Raises ConfigException for an unknown name (naming the nearest), an illegal value, or options that contradict each
    other."""
    settings = BROKER_OPTIONS.parse(options, **keywords)
    wrong = [
        *contradictions({**settings.ignored, **settings}),
        *kafka_options.unprotected_listeners(settings, settings.ignored),
    ]
    if wrong:
        raise ConfigException(join_errors(wrong))
    return settings


def contradictions(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with options that are all legal by themselves."""
    return [*_shortcomings(settings), *kafka_options.missing_flushes(settings), *(text for rule in _RULES for text in rule.fault(settings))]


def _shortcomings(settings: Mapping[str, Any]) -> Iterator[str]:
    if topic_defaults(settings).get("retention.ms") == 0:  # A topic's own may be 0 (KafkaConfig.scala).
        yield "log.retention.ms, or the minutes or hours in its place, cannot be 0: at least 1, or below 0 for no limit"
    if not settings["group.consumer.assignors"]:
        yield f"group.consumer.assignors is empty: it must name at least one of {', '.join(ASSIGNORS)}"
    protocols = settings["group.coordinator.rebalance.protocols"]
    if CLASSIC not in protocols:  # As in KafkaConfig.scala.
        yield f"group.coordinator.rebalance.protocols={','.join(protocols)} lacks {CLASSIC}: classic groups cannot be turned off"
    if settings["num.partitions"] > PARTITIONS_PER_REQUEST_MAX:
        most = f"{PARTITIONS_PER_REQUEST_MAX}, the most that one request may create"
        yield f"num.partitions={settings['num.partitions']} is above {most}: no topic could be created without a number of its own"


@dataclass(frozen=True, slots=True)
class _Rule:
    """The first option is at most as large as the second, or smaller; `else_`: what would be so otherwise."""

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


_NOT_THEIRS: Final = "groups would have by default what they may not set"
_CONSUMER: Final = "group.consumer"
_RULES: Final = (
    _Rule("group.min.session.timeout.ms", "group.max.session.timeout.ms", "no member could join"),
    # Those of GroupCoordinatorConfig.
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
