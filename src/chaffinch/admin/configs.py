"""Configurations of topics and nodes: read them, and change single ones (DescribeConfigs, IncrementalAlterConfigs)."""

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
    """One configuration value of a topic or node.

    Attributes:
        name: name of the option, as in Kafka's configurations of topics and brokers.
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
        """Whether it is set for the topic, or set elsewhere to a value that differs from the default."""
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
    request = _describe(messages.RESOURCE_TOPIC, topics)
    return _described(client.request(request)) if request.resources else {}


def describe_node_configs(client: SyncClient, node: int) -> dict[str, ConfigEntry]:
    """Configurations of a node, which that node returns.

    Args:
        client: client of `options.connect`.
        node: id of the node.

    Returns:
        Configurations by name.

    Raises:
        BrokerNotAvailableException: there is no such node.
    """
    return _described(client.node_request(node, _describe(messages.RESOURCE_BROKER, [str(node)])))[str(node)]


def _describe(resource_type: int, names: Iterable[str]) -> DescribeConfigsRequest:
    resources = [DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None) for name in names]
    return DescribeConfigsRequest(resources=resources, include_synonyms=True)


def _described(answer: DescribeConfigsResponse) -> dict[str, dict[str, ConfigEntry]]:
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
    response_errors.raise_for(client.controller_request(_alter(messages.RESOURCE_TOPIC, topic, changed, deleted)))


def alter_node_configs(client: SyncClient, node: int | None, *, changed: Mapping[str, str], deleted: Iterable[str] = ()) -> None:
    """Change configurations of a node, or the defaults of all nodes, while they run: all of them, or none if one is rejected.

    Args:
        client: client of `options.connect`.
        node: id of the node; None for the defaults of all nodes.
        changed: values to set, by name.
        deleted: names to reset to their defaults.

    Raises:
        InvalidRequestException, InvalidConfigurationException: an option is unknown, has an invalid value, or needs a restart.
        BrokerNotAvailableException: there is no such node.
    """
    request = _alter(messages.RESOURCE_BROKER, "" if node is None else str(node), changed, deleted)
    response_errors.raise_for(client.controller_request(request) if node is None else client.node_request(node, request))


def _alter(resource_type: int, name: str, changed: Mapping[str, str], deleted: Iterable[str]) -> IncrementalAlterConfigsRequest:
    changes = [AlterableConfig(name=key, config_operation=OPERATION_SET, value=value) for key, value in changed.items()]
    changes += [AlterableConfig(name=key, config_operation=OPERATION_DELETE, value=None) for key in deleted]
    resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=changes)
    return IncrementalAlterConfigsRequest(resources=[resource])
