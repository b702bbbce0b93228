"""DescribeConfigs: options of topics, nodes and groups, with value, source, type and documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.configs import entries as config_entries
from chaffinch.broker.core.configs.changes import check_named, check_node, existing_topic
from chaffinch.broker.core.configs.entries import ConfigEntry
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.response_size_limit import ResponseSizeLimit
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    SOURCE_DEFAULT,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(broker: BrokerState, event: RequestReceived, request: DescribeConfigsRequest, steady_ms: int) -> Result:
    size_limit = ResponseSizeLimit(broker.settings)
    results = [size_limit.add(_described(broker, *key, names, request, size_limit)) for key, names in _requested(request).items()]
    return DescribeConfigsResponse(results=results)


def _requested(request: DescribeConfigsRequest) -> dict[tuple[int, str], set[str] | None]:
    """(type, name) -> requested options, None for all; each resource once."""
    requested: dict[tuple[int, str], set[str] | None] = {}
    for resource in request.resources:
        key = resource.resource_type, resource.resource_name
        before = requested.setdefault(key, set())
        if before is None or not resource.configuration_keys:
            requested[key] = None
        else:
            before.update(resource.configuration_keys)
    return requested


def _described(
    broker: BrokerState,
    resource_type: int,
    name: str,
    wanted: set[str] | None,
    request: DescribeConfigsRequest,
    size_limit: ResponseSizeLimit,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource_type, resource_name=name)
    try:
        describe = _DESCRIBED.get(resource_type)
        if describe is None:
            raise RequestRefused(codes.INVALID_REQUEST, f"there are no resources of type {resource_type}")
        entries = describe(broker, name)
    except RequestRefused as refused:
        result.error_code, result.error_message = refused.code.number, refused.message
        return result
    result.configs = [size_limit.add(_shown(entry, request)) for entry in entries if wanted is None or entry.name in wanted]
    return result


def _of_topic(broker: BrokerState, name: str) -> list[ConfigEntry]:
    return config_entries.topic_entries(existing_topic(broker, name).overrides, broker.settings)


def _of_broker(broker: BrokerState, name: str) -> list[ConfigEntry]:
    if not name:
        return config_entries.default_broker_entries(broker.settings)
    check_node(broker, name)
    node = next(node for node in broker.nodes.nodes if str(node.id) == name)
    protocol = broker.settings["security.protocol"]
    return config_entries.broker_entries(broker.settings, config_entries.identity_of(node, protocol, broker.topics.directory))


def _of_loggers(broker: BrokerState, name: str) -> list[ConfigEntry]:
    """No logger has a configurable level."""
    check_node(broker, name)
    return []


def _of_clients(broker: BrokerState, name: str) -> list[ConfigEntry]:
    """Client metrics resources have no options here."""
    check_named(name)
    return []


def _of_group(broker: BrokerState, name: str) -> list[ConfigEntry]:
    check_named(name)
    return config_entries.group_entries(broker.groups.configs.overrides(name), broker.settings)


_DESCRIBED: Mapping[int, Callable[[BrokerState, str], list[ConfigEntry]]] = {
    RESOURCE_TOPIC: _of_topic,
    RESOURCE_BROKER: _of_broker,
    RESOURCE_BROKER_LOGGER: _of_loggers,
    RESOURCE_CLIENT_METRICS: _of_clients,
    RESOURCE_GROUP: _of_group,
}


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        config_source=entry.source,
        is_default=entry.source == SOURCE_DEFAULT,
        synonyms=[DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
