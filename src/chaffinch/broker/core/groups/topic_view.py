"""The broker's topics as consumer groups see them."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.broker.core.groups.consumer_group import TopicInfo
from chaffinch.broker.core.topics.registry import TopicRegistry


class TopicView:
    """Implements `consumer_subscriptions.Topics`."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        return self._topics.version

    def all(self) -> Mapping[str, TopicInfo]:
        """By name."""
        return {topic.name: TopicInfo(topic.topic_id, len(topic.partitions)) for topic in self._topics}
