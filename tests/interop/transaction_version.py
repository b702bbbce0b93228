"""Which version of transactions Apache Kafka has its clients speak (KIP-890), and how it is told another: a feature of the cluster."""

from __future__ import annotations

import time

from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType

FEATURE = "transaction.version"
LATEST = 2
APPLIED_S = 10.0


def tell(address: str, version: int) -> bool:
    """Have clients that connect from now on speak this version. False: before 4.0 there is no such feature, and all speak version 1."""
    admin = KafkaAdminClient(bootstrap_servers=address, client_id="judge")
    try:
        told = _told(admin)
        if told is None or told == version:
            return told is not None
        way = UpdateFeatureType.UPGRADE if version > told else UpdateFeatureType.SAFE_DOWNGRADE
        admin.update_features({FEATURE: (way, version)})
        ends = time.monotonic() + APPLIED_S
        while _told(admin) != version and time.monotonic() < ends:  # The broker hears of it from its controller.
            pass
        return _told(admin) == version
    finally:
        admin.close()


def _told(admin: KafkaAdminClient) -> int | None:
    level: tuple[int, int] | None = admin.describe_features().get(FEATURE, {}).get("finalized")
    return None if level is None else level[1]
