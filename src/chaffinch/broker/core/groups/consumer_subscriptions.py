"""Subscriptions of consumer groups: matches topic names and regular expressions against the existing topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol
from uuid import UUID

from chaffinch.broker.core.groups.consumer_group import ConsumerMember, Subscriptions, TopicInfo
from chaffinch.broker.core.groups.topic_pattern import InvalidPattern, TopicPattern
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import codes

PATTERNS_MAX = 200
"""Cached expressions and their matches; beyond this they are recomputed."""
NAMES_MAX = 1_000_000
"""Limit of matched names in the cache, all expressions together: about 100 MB."""


class Topics(Protocol):
    """All existing topics. `version` changes whenever a topic is created, deleted or extended."""

    @property
    def version(self) -> int: ...

    def all(self) -> Mapping[str, TopicInfo]:
        """All topics by name. Called once per version."""


class SubscribedTopics:
    """Resolves subscriptions to topics. The matches of a pattern are computed once; afterwards only new topics are matched."""

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
                self._forget(next(iter(self._patterns)))
            self._patterns[pattern] = compiled

    def of(self, subscriptions: Subscriptions) -> dict[str, TopicInfo]:
        """The existing topics that any member subscribes to."""
        names = set(subscriptions.names)
        for pattern in subscriptions.patterns:
            names |= self._matching(pattern)
        known = self._all()
        return {name: known[name] for name in sorted(names) if name in known}

    def ids_of(self, members: Iterable[ConsumerMember], topics: Mapping[str, TopicInfo]) -> dict[str, frozenset[UUID]]:
        """The ids of the topics that each member subscribes to, by member id. Members with equal subscriptions share one set."""
        kinds: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        result = {}
        for member in members:
            kind = member.topics, member.pattern
            if kind not in kinds:
                names = member.topics | self._matching(member.pattern)
                kinds[kind] = frozenset(topics[name].topic_id for name in names if name in topics)
            result[member.member_id] = kinds[kind]
        return result

    def _matching(self, pattern: str) -> frozenset[str]:
        if not pattern:
            return frozenset()
        known = self._all()
        matched = self._matched.get(pattern)
        if matched is None:
            self.check_pattern(pattern)
            compiled = self._patterns[pattern]
            matched = frozenset(name for name in known if compiled.matches(name))
            self._cache(pattern, matched)
        return matched

    def _cache(self, pattern: str, matched: frozenset[str]) -> None:
        if sum(map(len, self._matched.values())) + len(matched) > NAMES_MAX:
            self._matched.clear()
        self._matched[pattern] = matched

    def _forget(self, pattern: str) -> None:
        del self._patterns[pattern]
        self._matched.pop(pattern, None)

    def _all(self) -> Mapping[str, TopicInfo]:
        if self._known_version != self._topics.version:
            before, self._known, self._known_version = self._known, self._topics.all(), self._topics.version
            come, gone = self._known.keys() - before.keys(), before.keys() - self._known.keys()
            for pattern, matched in self._matched.items() if come or gone else ():
                compiled = self._patterns[pattern]
                self._matched[pattern] = (matched - gone) | {name for name in come if compiled.matches(name)}
        return self._known
