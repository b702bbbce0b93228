"""Server side assignors: every partition to exactly one subscriber, as evenly as can be, and no needless moves."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core.groups.assignors import ASSIGNORS, Partitions, TopicIdPartition, assign_range, assign_uniform

TOPICS = [UUID(int=number) for number in range(1, 4)]
Plan = tuple[dict[str, frozenset[UUID]], dict[UUID, int], dict[str, Partitions]]


@st.composite
def plans(draw: st.DrawFn, *, alike: bool = False) -> Plan:
    """Who subscribes to what, how large topics are, and some assignment from before, perhaps of other sizes and members."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 5), max_size=3))
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6))
    chosen = st.frozensets(st.sampled_from(TOPICS))
    common_topics = draw(chosen)
    subscriptions = {name: common_topics if alike else draw(chosen) for name in names}
    previous: dict[str, set[TopicIdPartition]] = {}
    for topic in TOPICS:
        for index in range(5):
            owner = draw(st.sampled_from(["", *"abcdefg"]))
            if owner:
                previous.setdefault(owner, set()).add(TopicIdPartition(topic, index))
    return subscriptions, counts, {name: frozenset(partitions) for name, partitions in previous.items()}


def assert_whole(plan: Plan, result: dict[str, Partitions]) -> None:
    subscriptions, counts, _ = plan
    assert set(result) == set(subscriptions)
    given_out = [partition for partitions in result.values() for partition in partitions]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_out) == [TopicIdPartition(topic, index) for topic in sorted(wanted) for index in range(counts.get(topic, 0))]
    for member, partitions in result.items():
        assert {partition.topic_id for partition in partitions} <= subscriptions[member]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(plan=plans())
def test_every_partition_is_assigned_to_one_subscriber(name: str, plan: Plan) -> None:
    assert_whole(plan, ASSIGNORS[name](*plan))


@given(plan=plans(alike=True))
def test_identical_subscriptions_get_counts_that_differ_by_at_most_one(plan: Plan) -> None:
    result = assign_uniform(*plan)
    assert_whole(plan, result)
    sizes = [len(partitions) for partitions in result.values()]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(plan=plans())
def test_no_member_has_two_more_than_another_subscriber(plan: Plan) -> None:
    subscriptions, _, _ = plan
    result = assign_uniform(*plan)
    for rich in result:
        for poor, topics in subscriptions.items():
            if len(result[rich]) > len(result[poor]) + 1:
                assert not any(partition.topic_id in topics for partition in result[rich])


@given(plan=plans())
def test_unchanged_members_and_topics_keep_the_assignment(plan: Plan) -> None:
    subscriptions, counts, _ = plan
    for assign in (assign_uniform, assign_range):
        first = assign(*plan)
        assert assign(subscriptions, counts, first) == first


@given(plan=plans(alike=True), newcomer=st.booleans())
def test_uniform_assignor_moves_the_minimum(plan: Plan, newcomer: bool) -> None:
    """A new member takes from each of the others, a leaving one gives to each. No other partitions move."""
    subscriptions, counts, _ = plan
    if len(subscriptions) < 2:
        return
    before = assign_uniform(*plan)
    topics = next(iter(subscriptions.values()))
    after_members = {**subscriptions, "new": topics} if newcomer else dict(list(subscriptions.items())[1:])
    after = assign_uniform(after_members, counts, before)
    moved = sum(len(after[name] - before.get(name, frozenset())) for name in after)
    gone = 0 if newcomer else len(before[next(iter(subscriptions))])
    arrived = len(after["new"]) if newcomer else 0
    assert moved == max(gone, arrived)


def test_range_assignor_gives_each_member_the_same_range_of_every_topic() -> None:
    both = frozenset(TOPICS[:2])
    result = assign_range({"a": both, "b": both}, {TOPICS[0]: 5, TOPICS[1]: 5}, {})
    for topic in both:
        assert sorted(index for owner, index in result["a"] if owner == topic) == [0, 1, 2]
        assert sorted(index for owner, index in result["b"] if owner == topic) == [3, 4]


def test_ten_thousand_partitions_are_assigned_evenly() -> None:
    """Ten thousand partitions; every other member has a subscription of its own."""
    counts = {UUID(int=number): 10 for number in range(1, 1001)}
    everything = frozenset(counts)
    subscriptions = {f"m{number}": everything if number % 2 else everything - {UUID(int=number + 1)} for number in range(50)}
    result = assign_uniform(subscriptions, counts, {})
    assert sum(map(len, result.values())) == 10_000
    assert {len(partitions) for partitions in result.values()} == {200}
