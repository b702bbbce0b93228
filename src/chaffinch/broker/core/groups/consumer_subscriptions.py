"""Which topics the members of consumer groups subscribe to, by name and by regular expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol
from uuid import UUID

from chaffinch.broker.core.groups.consumer_group import ConsumerMember, TopicInfo
from chaffinch.broker.core.groups.topic_pattern import InvalidPattern, TopicPattern
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes

PATTERNS_MAX = 1000
"""Compiled expressions and what they match that are kept; beyond it they are worked out again."""


class Topics(Protocol):
    """All topics there are. `version` is another number whenever one came, went or grew."""

    @property
    def version(self) -> int: ...

    def all(self) -> Mapping[str, TopicInfo]:
        """By name. Asked for once per version."""


class SubscribedTopics:
    """Subscriptions against the topics there are. What a pattern matches is worked out once per version of the topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: Mapping[str, TopicInfo] = {}
        self._known_version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._matched: dict[str, frozenset[str]] = {}

    @property
    def version(self) -> int:
        return self._topics.version

    def check_pattern(self, pattern: str) -> None:
        """Raises INVALID_REGULAR_EXPRESSION."""
        if pattern and pattern not in self._patterns:
            try:
                compiled = TopicPattern(pattern)
            except InvalidPattern as error:
                raise RequestRefused(codes.INVALID_REGULAR_EXPRESSION, f"subscribed topic regex {pattern[:200]!r}: {error}") from None
            if len(self._patterns) >= PATTERNS_MAX:
                self._patterns.clear()
                self._matched.clear()
            self._patterns[pattern] = compiled

    def of(self, members: Iterable[ConsumerMember]) -> dict[str, TopicInfo]:
        """The topics that exist of those that anybody subscribes to."""
        names: set[str] = set()
        for member in members:
            names |= member.topics | self._matching(member.pattern)
        known = self._all()
        return {name: known[name] for name in sorted(names) if name in known}

    def ids_of(self, member: ConsumerMember, topics: Mapping[str, TopicInfo]) -> frozenset[UUID]:
        """Of those topics, the ones this member subscribes to."""
        names = member.topics | self._matching(member.pattern)
        return frozenset(topics[name].topic_id for name in names if name in topics)

    def _matching(self, pattern: str) -> frozenset[str]:
        if not pattern:
            return frozenset()
        known = self._all()
        if pattern not in self._matched:
            self.check_pattern(pattern)
            compiled = self._patterns[pattern]
            self._matched[pattern] = frozenset(name for name in known if compiled.matches(name))
        return self._matched[pattern]

    def _all(self) -> Mapping[str, TopicInfo]:
        if self._known_version != self._topics.version:
            self._known, self._known_version = self._topics.all(), self._topics.version
            self._matched.clear()
        return self._known
