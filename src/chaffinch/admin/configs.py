"""Configurations of topics: read them, and change single ones (DescribeConfigs, IncrementalAlterConfigs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from chaffinch.client import response_errors
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.messages import describe_configs as messages
from chaffinch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_DELETE,
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from chaffinch.public_names import exported_from

SOURCES: Final[Mapping[int, str]] = {
    messages.SOURCE_TOPIC: "topic",
    messages.SOURCE_DYNAMIC_BROKER: "broker, changed",
    messages.SOURCE_DYNAMIC_DEFAULT_BROKER: "cluster, changed",
    messages.SOURCE_STATIC_BROKER: "broker",
    messages.SOURCE_DEFAULT: "default",
}
"""Names of the sources of a value, by number in DescribeConfigs."""


@exported_from("chaffinch.admin")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One configuration value of a topic.

    Attributes:
        name: name of the option, as in Kafka's topic configurations.
        value: the effective value; None for a secret.
        source: where it is set, one of the values of `SOURCES`.
        default: the default; None if the broker does not return it.
        is_sensitive: whether the value is a secret.
    """

    name: str
    value: str | None
    source: str
    default: str | None
    is_sensitive: bool

    @property
    def differs_from_default(self) -> bool:
        """Whether it is set for this topic, or set elsewhere to a value that differs from the default."""
        return self.source == SOURCES[messages.SOURCE_TOPIC] or (self.source != "default" and self.value != self.default)


def describe_topic_configs(client: SyncClient, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
    """Configurations of topics.

    Args:
        client: client of `options.connect`.
        topics: names of topics; without a name no request is sent.

    Returns:
        Configurations by name, by topic.

    Raises:
        ApiException: for the first topic that cannot be described, for example UnknownTopicOrPartitionException.
    """
    resources = [
        DescribeConfigsResource(resource_type=messages.RESOURCE_TOPIC, resource_name=name, configuration_keys=None) for name in topics
    ]
    if not resources:
        return {}
    answer: DescribeConfigsResponse = client.request(DescribeConfigsRequest(resources=resources, include_synonyms=True))
    response_errors.raise_for(answer)
    return {result.resource_name: {config.name: _entry(config) for config in result.configs} for result in answer.results}


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    default = next((synonym.value for synonym in config.synonyms if synonym.source == messages.SOURCE_DEFAULT), None)
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=SOURCES.get(config.config_source, "unknown"),
        default=default,
        is_sensitive=config.is_sensitive,
    )


def alter_topic_configs(client: SyncClient, topic: str, *, changed: Mapping[str, str], deleted: Iterable[str] = ()) -> None:
    """Change configurations of a topic: all of them, or none if one is rejected.

    Args:
        client: client of `options.connect`.
        topic: name of the topic.
        changed: values to set, by name.
        deleted: names to reset to their defaults.

    Raises:
        ApiException: InvalidConfigurationException for an unknown name or an invalid value, UnknownTopicOrPartitionException, and others.
    """
    changes = [AlterableConfig(name=name, config_operation=OPERATION_SET, value=value) for name, value in changed.items()]
    changes += [AlterableConfig(name=name, config_operation=OPERATION_DELETE, value=None) for name in deleted]
    resource = AlterConfigsResource(resource_type=messages.RESOURCE_TOPIC, resource_name=topic, configs=changes)
    response_errors.raise_for(client.controller_request(IncrementalAlterConfigsRequest(resources=[resource])))
