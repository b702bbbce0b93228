"""DescribeConfigs: every option of topics and nodes, with its value, its source, its type and its documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaffinch.broker.core import config_entries
from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.config_changes import check_node, existing_topic
from chaffinch.broker.core.config_entries import ConfigEntry
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    SOURCE_DEFAULT,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, DescribeConfigsRequest)
    return DescribeConfigsResponse(results=[_described(broker, resource, request) for resource in request.resources])


def _described(broker: BrokerState, resource: DescribeConfigsResource, request: DescribeConfigsRequest) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        describe = _DESCRIBED.get(resource.resource_type)
        if describe is None:
            raise RequestRefused(codes.INVALID_REQUEST, f"there are no resources of type {resource.resource_type}")
        entries = describe(broker, resource.resource_name)
    except RequestRefused as refused:
        result.error_code, result.error_message = refused.code.number, refused.message
        return result
    wanted = set(resource.configuration_keys or ())
    result.configs = [_shown(entry, request) for entry in entries if not wanted or entry.name in wanted]
    return result


def _of_topic(broker: BrokerState, name: str) -> list[ConfigEntry]:
    return config_entries.topic_entries(existing_topic(broker, name).overrides, broker.settings)


def _of_broker(broker: BrokerState, name: str) -> list[ConfigEntry]:
    if not name:
        return config_entries.default_broker_entries(broker.settings)
    check_node(broker, name)
    return config_entries.broker_entries(broker.settings)


def _of_loggers(broker: BrokerState, name: str) -> list[ConfigEntry]:
    """There are no loggers whose level could be looked at."""
    check_node(broker, name)
    return []


def _of_nothing(broker: BrokerState, name: str) -> list[ConfigEntry]:
    """Groups and clients have no options of their own here."""
    if not name:
        raise RequestRefused(codes.INVALID_REQUEST, "the name of the resource is empty")
    return []


_DESCRIBED: Mapping[int, Callable[[BrokerState, str], list[ConfigEntry]]] = {
    RESOURCE_TOPIC: _of_topic,
    RESOURCE_BROKER: _of_broker,
    RESOURCE_BROKER_LOGGER: _of_loggers,
    RESOURCE_CLIENT_METRICS: _of_nothing,
    RESOURCE_GROUP: _of_nothing,
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
