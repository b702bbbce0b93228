"""DescribeConfigs: every option of topics and nodes, with its value, its source, its type and its documentation."""

from __future__ import annotations

from chaffinch.broker.core import config_entries
from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.config_entries import ConfigEntry
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
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
        entries = _entries(broker, resource)
    except RequestRefused as refused:
        result.error_code, result.error_message = refused.code.number, refused.message
        return result
    wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
    result.configs = [_shown(entry, request) for entry in entries if wanted is None or entry.name in wanted]
    return result


def _entries(broker: BrokerState, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    if resource.resource_type == RESOURCE_TOPIC:
        topic = broker.topics.get(resource.resource_name)
        if topic is None:
            raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name!r} does not exist")
        return config_entries.topic_entries(topic.overrides, broker.settings)
    if resource.resource_type == RESOURCE_BROKER:
        check_node(broker, resource.resource_name)
        return config_entries.broker_entries(broker.settings)
    raise RequestRefused(codes.INVALID_REQUEST, f"resources of type {resource.resource_type} have no options here: topics are 2, brokers 4")


def check_node(broker: BrokerState, name: str) -> None:
    """A broker resource is named by a node's id, or "" for all of them. All nodes share their options."""
    if name and name not in {str(node.id) for node in broker.nodes.nodes}:
        raise RequestRefused(codes.INVALID_REQUEST, f"node {name!r} is not one of this cluster's {len(broker.nodes.nodes)} nodes")


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_default=entry.source == SOURCE_DEFAULT,
        synonyms=[DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
