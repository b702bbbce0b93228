"""ListConfigResources: names of the resources with options (KIP-1142): topics, nodes, and groups with options of their own. Client
metrics have none here.
"""

from __future__ import annotations

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from chaffinch.protocol.messages.list_config_resources import ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse

VERSION_WITH_TYPES = 1


def handle(broker: BrokerState, event: RequestReceived, request: ListConfigResourcesRequest, steady_ms: int) -> Result:
    nodes = [str(node.id) for node in broker.nodes.live]
    names = {
        RESOURCE_TOPIC: [topic.name for topic in broker.topics],
        RESOURCE_BROKER: nodes,
        RESOURCE_BROKER_LOGGER: nodes,
        RESOURCE_CLIENT_METRICS: [],
        RESOURCE_GROUP: broker.groups.configs.group_ids(),
    }
    wanted = set(request.resource_types or names) if event.request.version >= VERSION_WITH_TYPES else {RESOURCE_CLIENT_METRICS}
    if not wanted <= names.keys():
        return ListConfigResourcesResponse(error_code=codes.UNSUPPORTED_VERSION.number)
    return ListConfigResourcesResponse(
        config_resources=[ConfigResource(resource_name=name, resource_type=kind) for kind in sorted(wanted) for name in names[kind]]
    )
