"""What the producer knows of a topic beyond its metadata: the settings that explain refusals which a broker cannot explain itself.

Asked for (DescribeConfigs) only when an answer leaves a question open: KIP-135 and KIP-579 against brokers that never heard of them
(decisions 2, 19 and 21).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chaffinch.protocol.messages.describe_configs import (
    RESOURCE_TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
# A configuration may be changed meanwhile; what is older is asked for again.
FACTS_AGE_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Each is None when nobody could say. `is_asked`: the question was put, so there is no use in waiting for more."""

    is_compacted: bool | None = None
    min_insync_replicas: int | None = None
    replica_count: int | None = None
    is_asked: bool = False
    heard_ms: int = 0

    @property
    def is_inconsistent(self) -> bool:
        """Whether acks=all can never be met: KIP-579."""
        return self.min_insync_replicas is not None and self.replica_count is not None and self.min_insync_replicas > self.replica_count


UNKNOWN: Final = TopicFacts()


def facts_request(topic: str) -> DescribeConfigsRequest:
    """Ask for the settings that matter here."""
    keys = [CLEANUP_POLICY, MIN_INSYNC_REPLICAS]
    resource = DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=keys)
    return DescribeConfigsRequest(resources=[resource])


def read_facts(response: DescribeConfigsResponse | None, replica_count: int | None, now_ms: int) -> TopicFacts:
    """The facts in an answer; None (no answer, or not allowed) leaves them unknown, but asked for."""
    result = response.results[0] if response is not None and response.results and not response.results[0].error_code else None
    values = {row.name: row.value for row in result.configs} if result is not None else {}
    policy, minimum = values.get(CLEANUP_POLICY), values.get(MIN_INSYNC_REPLICAS)
    return TopicFacts(
        is_compacted=None if policy is None else "compact" in [part.strip() for part in policy.split(",")],
        min_insync_replicas=int(minimum) if minimum is not None and minimum.isdigit() else None,
        replica_count=replica_count,
        is_asked=True,
        heard_ms=now_ms,
    )
