"""Requests that change options and look at them."""

from __future__ import annotations

from chaffinch.protocol.messages import alter_configs as legacy
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from chaffinch.protocol.messages.incremental_alter_configs import (
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.core_client import Client


def replace(
    client: Client, name: str, kind: int = RESOURCE_TOPIC, *, validate_only: bool = False, **options: str | None
) -> tuple[int, str]:
    """AlterConfigs: code and message."""
    configs = [legacy.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in options.items()]
    resource = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (response,) = client.ask(legacy.AlterConfigsRequest(resources=[resource], validate_only=validate_only)).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message or ""


def change(name: str, kind: int = RESOURCE_TOPIC, operation: int = OPERATION_SET, **options: str | None) -> AlterConfigsResource:
    configs = [AlterableConfig(name=key.replace("_", "."), config_operation=operation, value=value) for key, value in options.items()]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def alter(client: Client, *resources: AlterConfigsResource) -> list[tuple[int, str]]:
    """IncrementalAlterConfigs: code and message of each."""
    responses = client.ask(IncrementalAlterConfigsRequest(resources=list(resources))).responses
    return [(response.error_code, response.error_message or "") for response in responses]


def describe(client: Client, name: str, kind: int = RESOURCE_TOPIC, keys: list[str] | None = None, **wishes: bool) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = client.ask(DescribeConfigsRequest(resources=[resource], **wishes)).results
    assert isinstance(result, DescribeConfigsResult)
    return result
