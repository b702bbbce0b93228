"""Who gets which partition: Kafka's own results for range and round robin, and what the sticky assignors promise, for any group."""

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from chaffinch.consumer.core.assignors import ASSIGNORS, Claim, balance
from chaffinch.consumer.core.group_protocol import MemberSubscription, encode_cooperative, encode_sticky
from chaffinch.identifiers import TopicPartition

TOPICS = ("a", "b", "c", "d")
names = st.sampled_from(TOPICS)
counts_of_topics = st.dictionaries(names, st.integers(0, 9))
subscriptions = st.dictionaries(st.sampled_from([f"m{i}" for i in range(6)]), st.sets(names).map(frozenset), min_size=1)


def claims_of(assigned: Mapping[str, Sequence[TopicPartition]], generation: int = 1) -> dict[str, Claim]:
    return {member: Claim(tuple(partitions), generation) for member, partitions in assigned.items()}


def members(**topics: str) -> dict[str, MemberSubscription]:
    return {name: MemberSubscription(topics=tuple(wanted)) for name, wanted in topics.items()}


def formatted(assignment: Mapping[str, Sequence[TopicPartition]]) -> dict[str, list[str]]:
    return {member: [str(partition) for partition in partitions] for member, partitions in assignment.items()}


def every_partition(assigned: Mapping[str, Sequence[TopicPartition]]) -> list[TopicPartition]:
    return sorted(partition for partitions in assigned.values() for partition in partitions)


def wanted_partitions(topics: dict[str, frozenset[str]], counts: dict[str, int]) -> list[TopicPartition]:
    wanted = frozenset().union(*topics.values())
    return sorted(TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0)))


@pytest.mark.parametrize(
    ("name", "subscriptions", "counts", "expected"),
    [
        # The examples in the documentation of RangeAssignor and RoundRobinAssignor.
        ("range", {"c0": "ab", "c1": "ab"}, {"a": 3, "b": 3}, {"c0": ["a-0", "a-1", "b-0", "b-1"], "c1": ["a-2", "b-2"]}),
        ("roundrobin", {"c0": "ab", "c1": "ab"}, {"a": 3, "b": 3}, {"c0": ["a-0", "a-2", "b-1"], "c1": ["a-1", "b-0", "b-2"]}),
        (
            "roundrobin",
            {"c0": "a", "c1": "ab", "c2": "abc"},
            {"a": 1, "b": 2, "c": 3},
            {"c0": ["a-0"], "c1": ["b-0"], "c2": ["b-1", "c-0", "c-1", "c-2"]},
        ),
        ("range", {"c0": "a"}, {}, {"c0": []}),
        ("sticky", {"c0": "a", "c1": ""}, {"a": 2}, {"c0": ["a-0", "a-1"], "c1": []}),
        # StickyAssignor's second example, where the topics of all members differ.
        (
            "sticky",
            {"c0": "a", "c1": "ab", "c2": "abc"},
            {"a": 1, "b": 2, "c": 3},
            {"c0": ["a-0"], "c1": ["b-0", "b-1"], "c2": ["c-0", "c-1", "c-2"]},
        ),
    ],
)
def test_known_results(name: str, subscriptions: dict[str, str], counts: dict[str, int], expected: dict[str, list[str]]) -> None:
    assert formatted(ASSIGNORS[name].assign(members(**subscriptions), counts)) == expected


def test_static_members_are_sorted_first_by_name() -> None:
    subscriptions = {
        "m1": MemberSubscription(topics=("a",)),
        "m2": MemberSubscription(topics=("a",), instance_id="z"),
        "m3": MemberSubscription(topics=("a",), instance_id="y"),
    }
    assert formatted(ASSIGNORS["range"].assign(subscriptions, {"a": 3})) == {"m3": ["a-0"], "m2": ["a-1"], "m1": ["a-2"]}


def kafka_python_assignment(
    assignor: type[RangePartitionAssignor] | type[RoundRobinPartitionAssignor], counts: dict[str, int], topics: dict[str, frozenset[str]]
) -> dict[str, list[TopicPartition]]:
    """The result of kafka-python's assignor, which needs cluster metadata and a list of members."""
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(counts[topic])) if topic in counts else None)
    subscriptions = [
        SimpleNamespace(member_id=member, group_instance_id=None, metadata=SimpleNamespace(topics=sorted(wanted)))
        for member, wanted in topics.items()
    ]
    return {
        member: sorted(TopicPartition(topic, number) for topic, numbers in found.assigned_partitions for number in numbers)
        for member, found in assignor.assign(cluster, subscriptions).items()
    }


@pytest.mark.parametrize(("name", "other"), [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)])
@given(topics=subscriptions, counts=st.dictionaries(names, st.integers(1, 9)))
def test_same_result_as_kafka_python(
    name: str,
    other: type[RangePartitionAssignor] | type[RoundRobinPartitionAssignor],
    topics: dict[str, frozenset[str]],
    counts: dict[str, int],
) -> None:
    if name == "roundrobin":  # There it raises KeyError when it has to pass over a member.
        topics = dict.fromkeys(topics, next(iter(topics.values())))
    mine = ASSIGNORS[name].assign({member: MemberSubscription(topics=tuple(sorted(wanted))) for member, wanted in topics.items()}, counts)
    assert {member: sorted(partitions) for member, partitions in mine.items()} == kafka_python_assignment(other, counts, topics)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(topics=subscriptions, counts=counts_of_topics)
def test_each_partition_goes_to_one_subscriber(name: str, topics: dict[str, frozenset[str]], counts: dict[str, int]) -> None:
    assigned = ASSIGNORS[name].assign({member: MemberSubscription(topics=tuple(wanted)) for member, wanted in topics.items()}, counts)
    assert assigned.keys() == topics.keys()
    assert every_partition(assigned) == wanted_partitions(topics, counts)
    assert all(partition.topic in topics[member] for member, partitions in assigned.items() for partition in partitions)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(topics=subscriptions, counts=counts_of_topics)
def test_balanced_group_is_unchanged(name: str, topics: dict[str, frozenset[str]], counts: dict[str, int]) -> None:
    assign = ASSIGNORS[name].assign
    first = assign({member: MemberSubscription(topics=tuple(wanted)) for member, wanted in topics.items()}, counts)
    subscriptions = {
        member: MemberSubscription(
            topics=tuple(wanted),
            owned=tuple(first[member]),
            generation=3,
            user_data=encode_sticky(first[member], 3),
        )
        for member, wanted in topics.items()
    }
    assert assign(subscriptions, counts) == first


@given(topics=subscriptions, counts=counts_of_topics, seed=st.integers(0, 1000))
def test_no_other_assignment_is_more_equal(topics: dict[str, frozenset[str]], counts: dict[str, int], seed: int) -> None:
    """A sharing is as equal as can be when no partition can go, through however many hands, to a member with two fewer."""
    rng = random.Random(seed)
    there = wanted_partitions(topics, counts)
    claims = {member: Claim(tuple(p for p in there if rng.random() < 0.3), rng.randrange(3)) for member in topics}
    assigned = balance(topics, counts, claims)
    assert every_partition(assigned) == there
    for start in topics:
        reachable, before = {start}, set[str]()
        while reachable != before:
            before = set(reachable)
            given = {partition.topic for member in reachable for partition in assigned[member]}
            reachable |= {member for member, wanted in topics.items() if wanted & given}
        assert min(len(assigned[member]) for member in reachable) >= len(assigned[start]) - 1


@given(before=st.integers(1, 6), after=st.integers(1, 6), count=st.integers(0, 40))
def test_moves_are_minimal(before: int, after: int, count: int) -> None:
    """Members with one subscription come or go: who stays keeps what it had, up to its new share."""
    old = balance({f"m{i}": frozenset("a") for i in range(before)}, {"a": count}, {})
    new = balance({f"m{i}": frozenset("a") for i in range(after)}, {"a": count}, claims_of(old))
    kept = sum(len(set(new[member]) & set(old[member])) for member in new if member in old)
    sizes = sorted(map(len, new.values()), reverse=True)
    assert kept == sum(min(len(old[member]), size) for member, size in zip(old, sizes, strict=False))


@pytest.mark.parametrize(
    ("claims", "owner"),
    [
        ({"m0": ((0,), 1), "m1": ((0,), 2)}, "m1"),
        ({"m0": ((0,), 2), "m1": ((0,), 1)}, "m0"),
        ({"m0": ((), 2), "m1": ((0,), 2)}, "m1"),
    ],
)
def test_later_generation_wins_a_double_claim(claims: dict[str, tuple[tuple[int, ...], int]], owner: str) -> None:
    had = {
        member: Claim(tuple(TopicPartition("a", number) for number in found), generation) for member, (found, generation) in claims.items()
    }
    assigned = balance({"m0": frozenset("a"), "m1": frozenset("a")}, {"a": 1}, had)
    assert assigned[owner] == [TopicPartition("a", 0)]


def test_double_claim_in_one_generation_is_void() -> None:
    had = {"m0": Claim((TopicPartition("a", 0), TopicPartition("a", 1)), 2), "m1": Claim((TopicPartition("a", 0),), 2)}
    assigned = balance({"m0": frozenset("a"), "m1": frozenset("a")}, {"a": 2}, had)
    assert assigned == {"m0": [TopicPartition("a", 1)], "m1": [TopicPartition("a", 0)]}


def test_cooperative_partition_is_revoked_before_it_is_assigned() -> None:
    owned = tuple(TopicPartition("a", number) for number in range(4))
    subscriptions = {"m0": MemberSubscription(topics=("a",), owned=owned, generation=1), "m1": MemberSubscription(topics=("a",))}
    first = ASSIGNORS["cooperative-sticky"].assign(subscriptions, {"a": 4})
    assert formatted(first) == {"m0": ["a-0", "a-1"], "m1": []}
    subscriptions["m0"] = MemberSubscription(topics=("a",), owned=owned[:2], generation=2)
    assert formatted(ASSIGNORS["cooperative-sticky"].assign(subscriptions, {"a": 4})) == {"m0": ["a-0", "a-1"], "m1": ["a-2", "a-3"]}


def test_generation_of_an_older_member_is_in_its_user_data() -> None:
    both = (TopicPartition("a", 0),)
    subscriptions = {
        "m0": MemberSubscription(topics=("a",), owned=both, user_data=encode_cooperative(7)),
        "m1": MemberSubscription(topics=("a",), owned=both, user_data=encode_cooperative(6)),
    }
    assert formatted(ASSIGNORS["cooperative-sticky"].assign(subscriptions, {"a": 1}))["m0"] == ["a-0"]


def test_large_group_is_assigned_quickly() -> None:
    members_before = {f"m{i}": frozenset("a") for i in range(2)}
    old = balance(members_before, {"a": 2000}, {})
    new = balance({f"m{i}": frozenset("a") for i in range(50)}, {"a": 2000}, claims_of(old))
    assert {len(partitions) for partitions in new.values()} == {40}
