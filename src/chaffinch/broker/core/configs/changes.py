"""Config changes at run time, for IncrementalAlterConfigs and the older AlterConfigs (KIP-339, KIP-133).

Each resource changes completely or not at all. Checks and error codes follow Apache Kafka's ConfigAdminManager. Values are validated
by `topics/topic_options.py`, `groups/group_options.py` and, for brokers, `dynamic_settings.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaffinch.broker.core import options
from chaffinch.broker.core.broker_state import BrokerState, log_refusal
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.groups.group_options import GROUP_OPTIONS, GROUP_OPTIONS_BY_NAME
from chaffinch.broker.core.refusal import RequestRefused, to_refusal
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.registry import Topic
from chaffinch.broker.core.topics.topic_options import TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME, topic_defaults
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_GROUP, RESOURCE_TOPIC
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
)
from chaffinch.settings import Option, OptionTable
from chaffinch.storage.file_system import StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change of one resource. `replaces`: options that are not named are reset to their defaults."""

    resource_type: int
    resource_name: str
    configs: Sequence[AlterableConfig]
    replaces: bool = False

    @property
    def names(self) -> set[str]:
        return {config.name for config in self.configs}


def apply(
    broker: BrokerState, event: RequestReceived, changes: Sequence[ConfigChange], validate_only: bool, steady_ms: int
) -> list[tuple[int, str | None]]:
    """Apply changes. Returns code and message of each, in order; those without an error are in force, unless `validate_only`."""
    times_named = Counter((change.resource_type, change.resource_name) for change in changes)
    results: list[tuple[int, str | None]] = []
    for change in changes:
        try:
            if times_named[change.resource_type, change.resource_name] > 1:
                raise RequestRefused(codes.INVALID_REQUEST, "each resource must appear at most once")
            _apply(broker, change, validate_only)
            results.append((0, None))
        except (RequestRefused, StorageError) as error:
            refused = to_refusal(error, _subject(change))
            log_refusal(broker, event, steady_ms, subject=_subject(change), code=refused.code, reason=refused.logged)
            results.append((refused.code.number, refused.message))
    return results


def check_node(broker: BrokerState, name: str) -> None:
    """Check the name of a broker resource, which is a node id. All nodes share their options."""
    if name not in {str(node.id) for node in broker.nodes.nodes}:
        raise RequestRefused(codes.INVALID_REQUEST, f"node {name!r} does not exist: the last one is {len(broker.nodes.nodes) - 1}")


def check_named(name: str) -> None:
    """Check that a resource has a name: groups and clients have no options for all of them together."""
    if not name:
        raise RequestRefused(codes.INVALID_REQUEST, "the name of the resource is empty")


def existing_topic(broker: BrokerState, name: str) -> Topic:
    """Raises INVALID_TOPIC_EXCEPTION (17) or UNKNOWN_TOPIC_OR_PARTITION (3)."""
    topic = broker.topics.get(name)
    if topic is None:
        fault = creation_rules.fault_of(name)
        code = codes.UNKNOWN_TOPIC_OR_PARTITION if fault is None else codes.INVALID_TOPIC_EXCEPTION
        raise RequestRefused(code, fault or f"topic {name!r} does not exist")
    return topic


def _apply(broker: BrokerState, change: ConfigChange, validate_only: bool) -> None:
    if len(change.names) != len(change.configs):
        raise RequestRefused(codes.INVALID_REQUEST, "an option is named twice for the same resource")
    without_value = [config.name for config in change.configs if config.value is None and config.config_operation != OPERATION_DELETE]
    if without_value:
        raise RequestRefused(codes.INVALID_REQUEST, f"option {without_value[0]} has no value")
    if change.resource_type == RESOURCE_TOPIC:
        _alter_topic(broker, change, validate_only)
    elif change.resource_type == RESOURCE_BROKER:
        _alter_broker(broker, change, validate_only)
    elif change.resource_type == RESOURCE_GROUP:
        _alter_group(broker, change, validate_only)
    elif change.resource_type == RESOURCE_BROKER_LOGGER and not change.replaces:
        raise RequestRefused(codes.INVALID_CONFIG, "there are no loggers whose level can be changed here")
    else:
        raise RequestRefused(codes.INVALID_REQUEST, f"resources of type {change.resource_type} have no options here")


def _subject(change: ConfigChange) -> str:
    if change.resource_type == RESOURCE_BROKER:
        return f"broker {change.resource_name}" if change.resource_name else "all brokers"
    return change.resource_name


def _alter_topic(broker: BrokerState, change: ConfigChange, validate_only: bool) -> None:
    known = broker.topics.get(change.resource_name)
    defaults = topic_defaults(broker.settings)
    overrides = _changed({} if known is None else known.overrides, change, TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME.get, defaults.get)
    broker.topics.validate_options(overrides)
    topic = existing_topic(broker, change.resource_name)
    if not validate_only:
        broker.topics.alter(topic.name, overrides)
        broker.log_options_without_effect(topic.name, {name: value for name, value in overrides.items() if name in change.names})


def _alter_broker(broker: BrokerState, change: ConfigChange, validate_only: bool) -> None:
    """Change broker options. The name "" means the defaults of all nodes; the options of a node override them."""
    is_default = not change.resource_name
    if not is_default:
        check_node(broker, change.resource_name)
    settings = broker.settings
    before = settings.overrides(is_default=is_default)
    overrides = _changed(before, change, options.BROKER_OPTIONS, options.find, settings.static_or_none)
    resolved = broker.topics.resolved_with(settings.validate(overrides, is_default=is_default))
    if not validate_only:
        settings.alter(overrides, is_default=is_default)
        broker.log_idle_options({name: overrides[name] for name in change.names & overrides.keys()})
        broker.topics.settings_changed(settings, resolved)


def _alter_group(broker: BrokerState, change: ConfigChange, validate_only: bool) -> None:
    check_named(change.resource_name)
    configs = broker.groups.configs
    overrides = _changed(configs.overrides(change.resource_name), change, GROUP_OPTIONS, GROUP_OPTIONS_BY_NAME.get, lambda _name: None)
    configs.validate(overrides)
    if not validate_only:
        configs.alter(change.resource_name, overrides)


def _changed(
    overrides: Mapping[str, str],
    change: ConfigChange,
    table: OptionTable,
    find: Callable[[str], Option | None],
    default_of: Callable[[str], Any],
) -> dict[str, str]:
    """The overrides after the change; the values are validated by the caller."""
    result = {} if change.replaces else dict(overrides)
    for config in change.configs:
        option = find(config.name)
        if option is None:
            raise RequestRefused(codes.INVALID_CONFIG, table.unknown(config.name, is_exact=True))
        value = config.value or ""
        if config.config_operation == OPERATION_DELETE:
            result.pop(config.name, None)
        elif config.config_operation == OPERATION_SET:
            result[config.name] = value
        elif config.config_operation in (OPERATION_APPEND, OPERATION_SUBTRACT):
            before = result.get(config.name, default_of(config.name))
            result[config.name] = _list_change(option, config.config_operation, value, before)
        else:
            raise RequestRefused(codes.INVALID_REQUEST, f"operation {config.config_operation} on option {config.name} does not exist")
    return result


def _list_change(option: Option, operation: int, value: str, before: Any) -> str:
    if option.kind != "list":
        raise RequestRefused(codes.INVALID_CONFIG, f"option {option.name} is not a list: elements cannot be added or removed")
    members = list(option.parse(before if before is not None else option.default or ()))
    named = [part.strip() for part in value.split(",") if part.strip()]
    if operation == OPERATION_SUBTRACT:
        return ",".join(member for member in members if member not in named)
    return ",".join(members + [member for member in named if member not in members])
