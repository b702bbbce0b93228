"""ApiVersions: what this broker serves, and its features (KIP-35, KIP-511, KIP-584)."""

from __future__ import annotations

import re

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.errors import codes
from chaffinch.protocol import apis
from chaffinch.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

CULPRIT_CODES_FEATURE = "chaffinch.culprit.codes"
"""Announced always: each culprit of a refused batch comes with its own code, for clients whose software is named chaffinch."""

NUMBERING_FEATURE = "chaffinch.error.numbering"
"""Announced while `error.numbering=kip` is on: its presence tells clients how to read 45, 85 and 89."""

TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_MAX = 2
"""Level of Kafka's feature that is served: 2 raises the epoch at every end (KIP-890). The option of this name says what is finalized."""

GROUP_VERSION = "group.version"
GROUP_VERSION_MAX = 1
"""Level of Kafka's feature that is served: 1 is KIP-848. Finalized unless the option of protocols leaves that out."""

_SERVED = [
    ApiVersion(api_key=api.key, min_version=api.served.start, max_version=api.served.stop - 1) for api in apis.APIS.values() if api.served
]
"""The same at every connection."""
VERSION_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""What a client may call itself and its version (KIP-511): it ends up in names of metrics and in logs."""


def handle(broker: BrokerState, event: RequestReceived, request: ApiVersionsRequest, steady_ms: int) -> Result:
    software = (request.client_software_name, request.client_software_version)
    if event.request.version >= VERSION_WITH_SOFTWARE and not all(_SOFTWARE.fullmatch(text) for text in software):
        return ApiVersionsResponse(error_code=codes.INVALID_REQUEST.number)
    supported = [SupportedFeatureKey(name=TRANSACTION_VERSION, min_version=0, max_version=TRANSACTION_VERSION_MAX)]
    supported.append(SupportedFeatureKey(name=GROUP_VERSION, min_version=0, max_version=GROUP_VERSION_MAX))
    supported.append(SupportedFeatureKey(name=CULPRIT_CODES_FEATURE, min_version=1, max_version=1))
    if broker.numbering == "kip":
        supported.append(SupportedFeatureKey(name=NUMBERING_FEATURE, min_version=1, max_version=1))
    return ApiVersionsResponse(
        api_keys=_SERVED,
        supported_features=supported,
        finalized_features_epoch=0,
        finalized_features=[
            *_finalized(TRANSACTION_VERSION, broker.settings[TRANSACTION_VERSION]),
            *_finalized(GROUP_VERSION, int("consumer" in broker.settings["group.coordinator.rebalance.protocols"])),
        ],
    )


def _finalized(name: str, level: int) -> list[FinalizedFeatureKey]:
    """Clients speak the version of transactions and groups that is finalized here; level 0 is said by saying nothing, as in Kafka."""
    return [FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)] if level else []
