"""Config entries for DescribeConfigs: value, source, type, documentation, synonyms.

Sources and types are numbered as in Kafka's ConfigEntry and DescribeConfigsResponse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaffinch.broker.core import kafka_options, options
from chaffinch.broker.core.configs.dynamic_settings import DynamicSettings
from chaffinch.broker.core.groups import group_options
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.topics.topic_options import (
    BROKER_SYNONYMS,
    COARSER_SYNONYMS,
    SHOWN_WHERE_SET,
    TOPIC_OPTIONS,
    TOPIC_OPTIONS_BY_NAME,
    WITH_EFFECT,
)
from chaffinch.protocol.messages import describe_configs as wire
from chaffinch.settings import INT_MAX, Option, is_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """The current state of an option. `synonyms`: (name, value, source) of every source of its value, the effective one first."""

    name: str
    value: str | None
    source: int
    type: int
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: list[tuple[str, str | None, int]] = field(default_factory=list)


_WITH_DEFAULT = frozenset(BROKER_SYNONYMS.values()) - {"log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms"}
"""Broker options with their own default in Apache Kafka; the others take theirs from a coarser option, or have none."""


def topic_entries(overrides: Mapping[str, str], settings: DynamicSettings) -> list[ConfigEntry]:
    """Entries of all topic options of a topic with these overrides."""
    return [
        _entry(option, _topic_synonyms(option, overrides, settings))
        for option in TOPIC_OPTIONS.options
        if option.name in overrides or option.name not in SHOWN_WHERE_SET
    ]


def default_broker_entries(settings: DynamicSettings) -> list[ConfigEntry]:
    """Entries of the options set at run time for all nodes, as the broker resource without a name shows them."""
    overrides = settings.overrides(is_default=True)
    return [
        _entry(option, [(option.name, _counted(option, overrides[option.name]), wire.SOURCE_DYNAMIC_DEFAULT_BROKER)])
        for option in _options_of_nodes(settings)
        if option.name in overrides
    ]


def broker_entries(settings: DynamicSettings, identity: Mapping[str, str]) -> list[ConfigEntry]:
    """Entries of all options of a node. `identity`: values that identify the node and its addresses and are not given as options."""
    return [
        _entry(
            option,
            [(option.name, identity[option.name], wire.SOURCE_STATIC_BROKER)]
            if option.name in identity
            else _broker_synonyms(option, settings),
            is_read_only=not options.may_change(option.name),
        )
        for option in _options_of_nodes(settings)
    ]


def identity_of(node: Node, protocol: str, directory: str) -> dict[str, str]:
    """The `identity` argument of `broker_entries`. `protocol`: the security protocol of its listeners; `directory`: its log directory."""
    number = str(node.id)
    return {
        "advertised.listeners": f"{protocol}://{node.address}",
        "broker.id": number,
        "listeners": f"{protocol}://{node.listens_at or node.address}",
        "log.dir": directory,
        "log.dirs": directory,
        "node.id": number,
        "process.roles": "broker,controller",
    }


def _options_of_nodes(settings: DynamicSettings) -> list[Option]:
    """Options with an effect, then those without, then given options of plug-ins and single listeners."""
    named = {*settings.given, *settings.overrides(is_default=True), *settings.overrides(is_default=False)}
    fixed = [*options.BROKER_OPTIONS.options, *options.IDLE_OPTIONS_BY_NAME.values()]
    others = sorted(named - {option.name for option in fixed})
    return [*fixed, *(option for name in others if (option := options.find(name)) is not None)]


def group_entries(overrides: Mapping[str, str], settings: DynamicSettings) -> list[ConfigEntry]:
    """Entries of all options that a consumer group with these overrides may set."""
    return [_entry(option, _group_synonyms(option, overrides, settings)) for option in group_options.GROUP_OPTIONS.options]


def _group_synonyms(option: Option, overrides: Mapping[str, str], settings: DynamicSettings) -> list[tuple[str, str | None, int]]:
    own = [(option.name, _counted(option, overrides[option.name]), wire.SOURCE_GROUP)] if option.name in overrides else []
    return [*own, *_broker_synonyms(options.BROKER_OPTIONS_BY_NAME[group_options.BROKER_SYNONYMS[option.name]], settings)]


def _topic_synonyms(option: Option, overrides: Mapping[str, str], settings: DynamicSettings) -> list[tuple[str, str | None, int]]:
    synonyms: list[tuple[str, str | None, int]] = []
    if option.name in overrides:
        synonyms.append((option.name, _counted(option, overrides[option.name]), wire.SOURCE_TOPIC))
    synonym = BROKER_SYNONYMS.get(option.name)
    if synonym is not None:
        synonyms += _given_synonyms(synonym, settings)
        for name, unit in COARSER_SYNONYMS.get(synonym, ()):
            if name in settings.given:
                synonyms.append((name, _shown(max(settings.static(name) * unit, -1)), wire.SOURCE_STATIC_BROKER))
    synonyms.append((synonym if synonym in _WITH_DEFAULT else "", _shown(option.default), wire.SOURCE_DEFAULT))
    return synonyms


def _broker_synonyms(option: Option, settings: DynamicSettings) -> list[tuple[str, str | None, int]]:
    return [*_given_synonyms(option.name, settings), (option.name, _shown(options.default_of(option)), wire.SOURCE_DEFAULT)]


def _given_synonyms(name: str, settings: DynamicSettings) -> list[tuple[str, str | None, int]]:
    """The given values of a broker option, the effective one first."""
    named, defaults = settings.overrides(is_default=False), settings.overrides(is_default=True)
    option = options.find(name)
    assert option is not None
    synonyms: list[tuple[str, str | None, int]] = []
    if name in named:
        synonyms.append((name, _counted(option, named[name]), wire.SOURCE_DYNAMIC_BROKER))
    if name in defaults:
        synonyms.append((name, _counted(option, defaults[name]), wire.SOURCE_DYNAMIC_DEFAULT_BROKER))
    if name in settings.given:
        synonyms.append((name, _shown(settings.static(name)), wire.SOURCE_STATIC_BROKER))
    return synonyms


def _entry(option: Option, synonyms: list[tuple[str, str | None, int]], *, is_read_only: bool = False) -> ConfigEntry:
    is_sensitive = is_secret(option.name)
    if is_sensitive:
        synonyms = [(name, None, source) for name, _, source in synonyms]
    _, value, source = synonyms[0]
    return ConfigEntry(
        name=option.name,
        value=value,
        source=source,
        type=wire.TYPE_PASSWORD if is_sensitive else _type(option),
        documentation=_documentation(option),
        is_read_only=is_read_only,
        is_sensitive=is_sensitive,
        synonyms=[synonym for synonym in synonyms if synonym[0]],
    )


def _documentation(option: Option) -> str:
    """The documentation of an option; states if the option has no effect."""
    is_idle_topic_option = option is TOPIC_OPTIONS_BY_NAME.get(option.name) and option.name not in WITH_EFFECT
    if is_idle_topic_option or option.name in options.WITHOUT_EFFECT_ON_TOPICS:
        return f"{option.documentation} {kafka_options.DOCUMENTATION}"
    return option.documentation


def _type(option: Option) -> int:
    if (type_ := _TYPES_OF_KAFKA.get(kafka_options.TYPES.get(option.name, ""))) is not None:
        return type_
    if option.kind == "int":
        return wire.TYPE_INT if option.maximum is not None and option.maximum <= INT_MAX else wire.TYPE_LONG
    return _TYPES[option.kind]


_TYPES_OF_KAFKA: dict[str, int] = {"short": wire.TYPE_SHORT, "class": wire.TYPE_CLASS}
_TYPES: dict[str, int] = {
    "bool": wire.TYPE_BOOLEAN,
    "float": wire.TYPE_DOUBLE,
    "string": wire.TYPE_STRING,
    "list": wire.TYPE_LIST,
    "any": wire.TYPE_STRING,
}


def _counted(option: Option, text: str) -> str | None:
    """A given value in normalized form: "delete, compact" without the blank, "+1" without the sign."""
    return _shown(option.parse(text))


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
