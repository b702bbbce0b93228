"""ApiVersions: the APIs, versions and features that this broker supports (KIP-35, KIP-511, KIP-584)."""

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
"""Always announced: each culprit of a refused batch has its own error code, for clients whose software name is chaffinch."""

NUMBERING_FEATURE = "chaffinch.error.numbering"
"""Announced while `error.numbering=kip`: it determines the meaning of codes 45, 85 and 89."""

TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_MAX = 2
"""Highest supported level of the Kafka feature: 2 raises the epoch at each end of a transaction (KIP-890). The option of this name sets the
finalized level."""

GROUP_VERSION = "group.version"
GROUP_VERSION_MAX = 1
"""Highest supported level of the Kafka feature: 1 is KIP-848. Finalized unless `group.coordinator.rebalance.protocols` excludes it."""

_SERVED = [
    ApiVersion(api_key=api.key, min_version=api.served.start, max_version=api.served.stop - 1) for api in apis.APIS.values() if api.served
]
"""The same for every connection."""
VERSION_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""Allowed client software names and versions (KIP-511): they appear in metric names and logs."""


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
    """The finalized feature level, which clients follow; level 0 is represented by no entry, as in Kafka."""
    return [FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)] if level else []
