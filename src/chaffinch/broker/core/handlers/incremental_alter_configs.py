"""IncrementalAlterConfigs: sets and resets options of topics, nodes and groups, and edits lists, while the broker runs (KIP-339)."""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.configs import changes as config_changes
from chaffinch.broker.core.configs.changes import ConfigChange
from chaffinch.broker.core.events import RequestReceived
from chaffinch.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(broker: BrokerState, event: RequestReceived, request: IncrementalAlterConfigsRequest, steady_ms: int) -> Result:
    changes = [
        ConfigChange(resource_type=resource.resource_type, resource_name=resource.resource_name, configs=resource.configs)
        for resource in request.resources
    ]
    results = config_changes.apply(broker, event, changes, request.validate_only, steady_ms)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=change.resource_type, resource_name=change.resource_name
            )
            for change, (code, message) in zip(changes, results, strict=True)
        ]
    )
