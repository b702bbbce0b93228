"""Topics that members of consumer groups subscribe to: resolved again only as far as the topics changed, and bounded in memory."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaffinch.broker.core.groups import consumer_subscriptions
from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.consumer_group import ConsumerMember, Subscriptions, TopicInfo
from chaffinch.broker.core.groups.consumer_subscriptions import SubscribedTopics
from chaffinch.broker.core.groups.topic_pattern import TopicPattern


class Topics:
    """Topics of one partition; `version` changes with each `set`."""

    def __init__(self, *names: str) -> None:
        self.version = 0
        self.set(*names)

    def set(self, *names: str) -> None:
        self.version += 1
        self._all = {name: TopicInfo(UUID(int=number), 1) for number, name in enumerate(names)}

    def all(self) -> dict[str, TopicInfo]:
        return self._all


def member(name: str, *topics: str, pattern: str = "") -> ConsumerMember:
    return ConsumerMember(member_id=name, client=Client(client_id="c", host="h"), topics=frozenset(topics), pattern=pattern)


def of(members: list[ConsumerMember]) -> Subscriptions:
    return Subscriptions().after({}, {member.member_id: member for member in members})


@pytest.fixture
def matched_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that patterns were tried on."""
    names: list[str] = []
    matches = TopicPattern.matches

    def noting(self: TopicPattern, name: str) -> bool:
        names.append(name)
        return matches(self, name)

    monkeypatch.setattr(TopicPattern, "matches", noting)
    return names


def test_only_new_topics_are_matched(matched_names: list[str]) -> None:
    topics = Topics("a1", "a2", "b")
    subscribed = SubscribedTopics(topics)
    members = [member("m", pattern="a."), member("n", "b", pattern="a."), member("o", "nowhere")]
    assert list(subscribed.of(of(members))) == ["a1", "a2", "b"]
    assert sorted(matched_names) == ["a1", "a2", "b"]
    matched_names.clear()
    topics.set("a2", "a3", "b", "c")
    assert list(subscribed.of(of(members))) == ["a2", "a3", "b"]
    assert sorted(matched_names) == ["a3", "c"]


def test_ids_of_returns_the_topics_of_each_member() -> None:
    topics = Topics("a1", "a2", "b")
    subscribed = SubscribedTopics(topics)
    members = [member("m", pattern="a."), member("n", "b", "nowhere"), member("o", pattern="a.")]
    ids = subscribed.ids_of(members, subscribed.of(of(members)))
    assert {name: sorted(topic.int for topic in found) for name, found in ids.items()} == {"m": [0, 1], "n": [2], "o": [0, 1]}
    assert ids["m"] is ids["o"]


@pytest.mark.parametrize(("limit", "value"), [("PATTERNS_MAX", 3), ("NAMES_MAX", 5)])
def test_cached_matches_are_limited_and_recomputed(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(consumer_subscriptions, limit, value)
    topics = Topics("a1", "a2", "b1", "b2")
    subscribed = SubscribedTopics(topics)
    for _ in range(2):
        for number in range(10):
            pattern = f"[a{number}]."
            subscribed.check_pattern(pattern)
            assert list(subscribed.of(of([member("m", pattern=pattern)]))) == ["a1", "a2"]
            assert len(subscribed._matched) <= len(subscribed._patterns)
    if limit == "PATTERNS_MAX":
        assert len(subscribed._patterns) == 3
    assert sum(map(len, subscribed._matched.values())) <= (5 if limit == "NAMES_MAX" else 6)
