"""Cluster feature `transaction.version` of Apache Kafka (KIP-890): reads and sets the version its clients use."""

from __future__ import annotations

import time

from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType

FEATURE = "transaction.version"
LATEST = 2
APPLIED_S = 10.0


def set_version(address: str, version: int) -> bool:
    """Have clients that connect from now on speak this version. False: before 4.0 there is no such feature, and all speak version 1."""
    admin = KafkaAdminClient(bootstrap_servers=address, client_id="judge")
    try:
        current = _finalized(admin)
        if current is None or current == version:
            return current is not None
        upgrade_type = UpdateFeatureType.UPGRADE if version > current else UpdateFeatureType.SAFE_DOWNGRADE
        admin.update_features({FEATURE: (upgrade_type, version)})
        ends = time.monotonic() + APPLIED_S
        while _finalized(admin) != version and time.monotonic() < ends:  # The broker learns of it from its controller.
            pass
        return _finalized(admin) == version
    finally:
        admin.close()


def _finalized(admin: KafkaAdminClient) -> int | None:
    level: tuple[int, int] | None = admin.describe_features().get(FEATURE, {}).get("finalized")
    return None if level is None else level[1]
