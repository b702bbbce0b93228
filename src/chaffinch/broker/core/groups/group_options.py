"""Group options: options of groups and their offsets, under Apache Kafka's names with the defaults of Apache Kafka 4.3.

`BROKER_GROUP_OPTIONS` are options of the broker, `GROUP_OPTIONS` those that a single consumer group may override (KIP-848). `GroupConfigs`
validates the overrides, and stores them in the broker's journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from chaffinch.broker.core.groups.assignors import ASSIGNORS
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import ConfigException, codes
from chaffinch.settings import INT_MAX, Option, OptionTable
from chaffinch.storage.journal import Journal

CLASSIC: Final = "classic"
PROTOCOLS: Final = (CLASSIC, "consumer")
PROTOCOLS_WITHOUT_EFFECT: Final = ("streams", "share")
"""Protocols of other kinds of groups, which Apache Kafka has and this broker does not."""

BROKER_GROUP_OPTIONS: Final = (
    Option(
        "group.consumer.assignors",
        "list",
        tuple(ASSIGNORS),
        "Assignors of consumer groups, at least one; the first is the default for groups that request none.",
        choices=tuple(ASSIGNORS),
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        "int",
        5000,
        "Heartbeat interval of consumer group members: within the limits of groups, and shorter than the session timeout.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "group.consumer.max.heartbeat.interval.ms",
        "int",
        15_000,
        "Largest consumer.heartbeat.interval.ms that a group may set.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "group.consumer.max.session.timeout.ms",
        "int",
        60_000,
        "Largest consumer.session.timeout.ms that a group may set.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("group.consumer.max.size", "int", INT_MAX, "Largest number of members of a consumer group.", minimum=1, maximum=INT_MAX),
    Option(
        "group.consumer.min.heartbeat.interval.ms",
        "int",
        5000,
        "Smallest consumer.heartbeat.interval.ms that a group may set.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "group.consumer.min.session.timeout.ms",
        "int",
        45_000,
        "Smallest consumer.session.timeout.ms that a group may set.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        "int",
        45_000,
        "Members without a heartbeat for this long are removed; within the limits of groups.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option(
        "group.coordinator.rebalance.protocols",
        "list",
        PROTOCOLS,
        "Protocols of groups; without `consumer` clients are not offered KIP-848. `classic` cannot be left out, as in Apache Kafka; "
        "`streams` and `share` have no effect.",
        choices=(*PROTOCOLS, *PROTOCOLS_WITHOUT_EFFECT),
    ),
    Option(
        "group.initial.rebalance.delay.ms",
        "int",
        3000,
        "How long a new classic group waits for more members. 0 is the default of EmbeddedBroker.",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option(
        "group.max.session.timeout.ms",
        "int",
        1_800_000,
        "Longest session timeout of members of classic groups.",
        minimum=1,
        maximum=INT_MAX,
    ),
    Option("group.max.size", "int", INT_MAX, "Largest number of members of a classic group.", minimum=1, maximum=INT_MAX),
    Option(
        "group.min.session.timeout.ms", "int", 6000, "Shortest session timeout of members of classic groups.", minimum=1, maximum=INT_MAX
    ),
    Option(
        "offset.metadata.max.bytes",
        "int",
        4096,
        "Largest metadata text of a committed offset, in UTF-16 units, as Apache Kafka counts: one for most characters, two for an emoji.",
        minimum=0,
        maximum=INT_MAX,
    ),
    Option("offsets.retention.check.interval.ms", "int", 600_000, "Interval at which expired offsets are searched for.", minimum=1),
    Option(
        "offsets.retention.minutes",
        "int",
        10_080,
        "How long offsets are kept after a group became empty, or after the commit.",
        minimum=1,
        maximum=INT_MAX,
    ),
)

HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"

GROUP_OPTIONS: Final = OptionTable(
    (
        Option(HEARTBEAT_INTERVAL, "int", None, "Heartbeat interval of members of this group, in ms.", minimum=1, maximum=INT_MAX),
        Option(
            SESSION_TIMEOUT,
            "int",
            None,
            "Members of this group without a heartbeat for this many ms are removed.",
            minimum=1,
            maximum=INT_MAX,
        ),
    )
)
"""Options of KIP-848 consumer groups; members of classic groups send these values themselves."""

GROUP_OPTIONS_BY_NAME: Final = {option.name: option for option in GROUP_OPTIONS.options}
BROKER_SYNONYMS: Final = {option.name: f"group.{option.name}" for option in GROUP_OPTIONS.options}
"""Group option -> the broker option that gives its default."""


_PREFIX: Final = b"group.options/"


class GroupConfigs:
    """Options of single groups, set at run time. A group need not exist to have options. Limits and error codes follow Apache Kafka's
    GroupConfig. `settings`: the current broker options.
    """

    def __init__(self, settings: Mapping[str, Any], journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        stored = ((key.removeprefix(_PREFIX).decode(), value) for key, value in journal.items().items() if key.startswith(_PREFIX))
        self._overrides: dict[str, dict[str, str]] = {group_id: json.loads(value) for group_id, value in stored}

    def group_ids(self) -> list[str]:
        """Groups with options of their own."""
        return sorted(self._overrides)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """The options set on a group, as given."""
        return self._overrides.get(group_id, {})

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._value(group_id, HEARTBEAT_INTERVAL)

    def session_timeout_ms(self, group_id: str) -> int:
        return self._value(group_id, SESSION_TIMEOUT)

    def validate(self, overrides: Mapping[str, str]) -> None:
        """Raises RequestRefused (INVALID_CONFIG) for invalid options of a group."""
        try:
            given = GROUP_OPTIONS.parse(overrides)
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_CONFIG, str(error)) from None
        for name in sorted(given.given):
            least, most = (f"group.consumer.{end}.{name.removeprefix('consumer.')}" for end in ("min", "max"))
            if not self._settings[least] <= given[name] <= self._settings[most]:
                allowed = f"it must be at least {self._settings[least]} ({least}) and at most {self._settings[most]} ({most})"
                raise RequestRefused(codes.INVALID_CONFIG, f"option {name} cannot be {given[name]}: {allowed}")
        session_ms, heartbeat_ms = (given[name] or self._settings[BROKER_SYNONYMS[name]] for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
        if session_ms <= heartbeat_ms:
            wrong = f"{SESSION_TIMEOUT} is {session_ms} and {HEARTBEAT_INTERVAL} is {heartbeat_ms}: sessions must be longer"
            raise RequestRefused(codes.INVALID_CONFIG, wrong)

    def alter(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replace the options of a group; members receive them with their next heartbeat.

        Raises the errors of `validate`, and StorageError; nothing has changed then.
        """
        self.validate(overrides)
        self._journal.put({_PREFIX + group_id.encode(): json.dumps(dict(overrides)).encode() if overrides else None})
        if overrides:
            self._overrides[group_id] = dict(overrides)
        else:
            self._overrides.pop(group_id, None)

    def _value(self, group_id: str, name: str) -> int:
        own = self._overrides.get(group_id, {}).get(name)
        value: int = self._settings[BROKER_SYNONYMS[name]] if own is None else int(own)
        return value
