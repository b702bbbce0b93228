"""IncrementalAlterConfigs: set, reset, and change lists of, options of topics and nodes while the broker runs (KIP-339)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chaffinch.broker.core import options
from chaffinch.broker.core.broker_state import BrokerState, Result, refuse
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault
from chaffinch.broker.core.handlers.describe_configs import check_node
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.topic_options import TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME, topic_defaults
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import RESOURCE_BROKER, RESOURCE_TOPIC
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from chaffinch.settings import Option, OptionTable
from chaffinch.storage.file_system import StorageError


def handle(broker: BrokerState, event: RequestReceived, now_ms: int, fault: Fault | None) -> Result:
    request = event.request.message
    assert isinstance(request, IncrementalAlterConfigsRequest)
    responses = []
    for resource in request.resources:
        response = AlterConfigsResourceResponse(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            _alter(broker, resource, request.validate_only)
        except RequestRefused as refused:
            response.error_code, response.error_message = refused.code.number, refused.message
            refuse(broker, event, now_ms, place=resource.resource_name, code=refused.code, reason=refused.message)
        except StorageError as error:
            response.error_code, response.error_message = codes.KAFKA_STORAGE_ERROR.number, str(error)
            refuse(broker, event, now_ms, place=resource.resource_name, code=codes.KAFKA_STORAGE_ERROR, reason=str(error))
        responses.append(response)
    return IncrementalAlterConfigsResponse(responses=responses)


def _alter(broker: BrokerState, resource: AlterConfigsResource, validate_only: bool) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise RequestRefused(codes.INVALID_REQUEST, "an option is named twice for the same resource")
    if resource.resource_type == RESOURCE_TOPIC:
        _alter_topic(broker, resource, validate_only)
    elif resource.resource_type == RESOURCE_BROKER:
        _alter_broker(broker, resource, validate_only)
    else:
        raise RequestRefused(codes.INVALID_REQUEST, f"resources of type {resource.resource_type} have no options here")


def _alter_topic(broker: BrokerState, resource: AlterConfigsResource, validate_only: bool) -> None:
    topic = broker.topics.get(resource.resource_name)
    if topic is None:
        raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name!r} does not exist")
    defaults = topic_defaults(broker.settings)
    overrides = _changed(topic.overrides, resource.configs, TOPIC_OPTIONS, TOPIC_OPTIONS_BY_NAME, defaults.get)
    broker.topics.check_config(overrides)
    if not validate_only:
        broker.topics.alter(topic.name, overrides)
        broker.say_without_effect(topic.name, {name: value for name, value in overrides.items() if name in _names(resource)})


def _alter_broker(broker: BrokerState, resource: AlterConfigsResource, validate_only: bool) -> None:
    check_node(broker, resource.resource_name)
    settings = broker.settings
    overrides = _changed(
        settings.overrides, resource.configs, options.BROKER_OPTIONS, options.BROKER_OPTIONS_BY_NAME, settings.static_or_none
    )
    settings.check(overrides)
    if not validate_only:
        settings.alter(overrides)
        for name in sorted(_names(resource) & overrides.keys() & options.WITHOUT_EFFECT_ON_TOPICS):
            broker.refusals.without_effect(name, overrides[name])
        broker.topics.settings_changed(settings)


def _names(resource: AlterConfigsResource) -> set[str]:
    return {config.name for config in resource.configs}


def _changed(
    overrides: Mapping[str, str],
    changes: list[AlterableConfig],
    table: OptionTable,
    by_name: Mapping[str, Option],
    default_of: Callable[[str], Any],
) -> dict[str, str]:
    """The overrides after the changes; values are checked by whoever takes them."""
    result = dict(overrides)
    for change in changes:
        option = by_name.get(change.name)
        if option is None:
            raise RequestRefused(codes.INVALID_CONFIG, table.unknown(change.name))
        if change.config_operation == OPERATION_DELETE:
            result.pop(change.name, None)
            continue
        if change.value is None:
            raise RequestRefused(codes.INVALID_REQUEST, f"option {change.name} has no value")
        if change.config_operation == OPERATION_SET:
            result[change.name] = change.value
        elif change.config_operation in (OPERATION_APPEND, OPERATION_SUBTRACT):
            result[change.name] = _list_change(option, change, result.get(change.name, default_of(change.name)))
        else:
            raise RequestRefused(codes.INVALID_REQUEST, f"operation {change.config_operation} on option {change.name} does not exist")
    return result


def _list_change(option: Option, change: AlterableConfig, value: Any) -> str:
    if option.kind != "list":
        raise RequestRefused(codes.INVALID_CONFIG, f"option {change.name} is not a list: nothing can be added or taken away")
    members = list(option.parse(value if value is not None else option.default or ()))
    named = [part.strip() for part in (change.value or "").split(",") if part.strip()]
    if change.config_operation == OPERATION_SUBTRACT:
        return ",".join(member for member in members if member not in named)
    return ",".join(members + [member for member in named if member not in members])
