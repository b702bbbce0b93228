"""Options of groups and their offsets, under Apache Kafka's names with the defaults of Apache Kafka 4.3."""

from __future__ import annotations

from typing import Final

from chaffinch.broker.core.groups.assignors import ASSIGNORS
from chaffinch.settings import INT_MAX, Option

PROTOCOLS: Final = ("classic", "consumer")

GROUP_OPTIONS: Final = (
    Option(
        "group.consumer.assignors",
        "list",
        tuple(ASSIGNORS),
        "Assignors of consumer groups; the first serves those that ask for none.",
        choices=tuple(ASSIGNORS),
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        "int",
        5000,
        "How often members of consumer groups are to be heard of.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("group.consumer.max.size", "int", INT_MAX, "Most members of a consumer group.", minimum=1, maximum=INT_MAX),
    Option("group.consumer.session.timeout.ms", "int", 45_000, "Members not heard of for so long are removed.", minimum=1, maximum=INT_MAX),
    Option(
        "group.coordinator.rebalance.protocols",
        "list",
        PROTOCOLS,
        "Protocols of groups; without `consumer` clients are not offered KIP-848.",
        choices=PROTOCOLS,
    ),
    Option(
        "group.initial.rebalance.delay.ms", "int", 3000, "How long a new classic group waits for more members.", minimum=0, maximum=INT_MAX
    ),
    Option(
        "group.max.session.timeout.ms",
        "int",
        1_800_000,
        "Longest session timeout of members of classic groups.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("group.max.size", "int", INT_MAX, "Most members of a classic group.", minimum=1, maximum=INT_MAX),
    Option(
        "group.min.session.timeout.ms", "int", 6000, "Shortest session timeout of members of classic groups.", minimum=1, maximum=INT_MAX
    ),
    Option("offset.metadata.max.bytes", "int", 4096, "Largest text beside a committed offset.", minimum=0, maximum=INT_MAX),
    Option("offsets.retention.check.interval.ms", "int", 600_000, "How often offsets are looked at that may have expired.", minimum=1),
    Option(
        "offsets.retention.minutes",
        "int",
        10_080,
        "How long offsets are kept after a group became empty, or after the commit.",
        minimum=1,
        maximum=INT_MAX,
    ),
)
