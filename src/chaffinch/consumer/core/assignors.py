"""Partition assignors: the group leader assigns each partition to one member that subscribes to its topic. Pure functions.

`range` and `roundrobin` give the same result as RangeAssignor.java and RoundRobinAssignor.java without racks, partition by partition, so
any client may lead. The sticky assignors give the same guarantees as Kafka's (counts as equal as subscriptions allow, then as few moves as
possible), not the same choices: see `balance`.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from chaffinch.consumer.core.group_protocol import MemberSubscription, decode_cooperative, decode_sticky
from chaffinch.identifiers import TopicPartition


class Claim(NamedTuple):
    """Partitions that a member had, and in which generation."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1


Loads: TypeAlias = dict[str, dict[str, list[int]]]
"""Member -> topic -> partition numbers, ascending."""
Move: TypeAlias = tuple[str, str, str]
"""Giver, topic, receiver."""


def balance(
    topics: Mapping[str, frozenset[str]], counts: Mapping[str, int], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Member -> sorted partitions: counts as equal as subscriptions allow; a member keeps its partitions if that does not unbalance them.

    `topics`: subscriptions of the members; earlier members come first where counts are equal. `counts`: numbers of partitions. Topics
    without a subscriber or a number are left out.

    First each member keeps its partitions. Then the other partitions go to the members with the fewest. Then partitions move, one by one,
    along the shortest path from a member to one that has at least two fewer, if necessary through members that subscribe to both topics.
    Each path reduces the sum of squares, so this ends; when no path is left, no other assignment is more equal. With equal subscriptions
    each path has one step.

    Guarantees as of AbstractStickyAssignor.java. If two members claim a partition, the later generation wins; within one generation neither
    keeps it.
    """
    owners = _owners(topics, counts, claims)
    loads: Loads = {member: {} for member in topics}
    for partition, member in sorted(owners.items()):
        loads[member].setdefault(partition.topic, []).append(partition.partition)
    subscribers = {topic: [member for member in topics if topic in topics[member]] for topic in counts}
    for topic in sorted(counts, key=lambda name: (len(subscribers[name]), name)):
        missing = [number for number in range(counts[topic]) if TopicPartition(topic, number) not in owners]
        _distribute(loads, topic, missing, subscribers[topic])
    while path := _balancing_moves(loads, subscribers):
        for giver, topic, receiver in path:
            insort(loads[receiver].setdefault(topic, []), loads[giver][topic].pop())
    return {member: [TopicPartition(topic, number) for topic in sorted(load) for number in load[topic]] for member, load in loads.items()}


def _owners(topics: Mapping[str, frozenset[str]], counts: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Partitions that their owners keep: existing, still subscribed to, and claimed once in the latest generation that claims them."""
    latest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in topics:
        claim = claims.get(member, Claim())
        for partition in dict.fromkeys(claim.partitions):
            generation, _ = latest.get(partition, (claim.generation - 1, None))
            if claim.generation > generation:
                latest[partition] = claim.generation, member
            elif claim.generation == generation:
                latest[partition] = generation, None
    return {
        partition: member
        for partition, (_, member) in latest.items()
        if member is not None and partition.topic in topics[member] and 0 <= partition.partition < counts.get(partition.topic, 0)
    }


def _size(load: Mapping[str, list[int]]) -> int:
    return sum(map(len, load.values()))


def _distribute(loads: Loads, topic: str, missing: list[int], subscribers: list[str]) -> None:
    """Assign partitions without an owner to the members with the fewest.

    Called for topics with few subscribers first: later topics can compensate.
    """
    queue = [(_size(loads[member]), index, member) for index, member in enumerate(subscribers)]
    heapq.heapify(queue)
    for number in missing if subscribers else ():
        size, index, member = queue[0]
        heapq.heapreplace(queue, (size + 1, index, member))
        insort(loads[member].setdefault(topic, []), number)


def _balancing_moves(loads: Loads, subscribers: Mapping[str, list[str]]) -> list[Move]:
    """A path from a member with many partitions to one with fewer; empty if there is none."""
    sizes = {member: _size(load) for member, load in loads.items()}
    least = min(sizes.values(), default=0)
    for start in sorted(loads, key=lambda member: -sizes[member]):
        if sizes[start] < least + 2:
            break
        path = _path_down(start, loads, sizes, subscribers)
        if path:
            return path
    return []


def _path_down(start: str, loads: Loads, sizes: Mapping[str, int], subscribers: Mapping[str, list[str]]) -> list[Move]:
    """The shortest path from `start` to a member with at least two fewer partitions; of several the one to the member with the fewest."""
    arrivals: dict[str, Move] = {}
    level = [start]
    while level:
        reached: list[str] = []
        for giver in level:
            for topic in sorted(topic for topic, numbers in loads[giver].items() if numbers):
                for member in subscribers[topic]:
                    if member not in arrivals and member != start:
                        arrivals[member] = giver, topic, member
                        reached.append(member)
        ends = [member for member in reached if sizes[member] <= sizes[start] - 2]
        if ends:
            return _path_to(min(ends, key=sizes.__getitem__), arrivals)
        level = reached
    return []


def _path_to(end: str, arrivals: Mapping[str, Move]) -> list[Move]:
    path: list[Move] = []
    member = end
    while member in arrivals:
        path.append(arrivals[member])
        member = arrivals[member][0]
    return path[::-1]


Members = Mapping[str, MemberSubscription]
"""Member id -> its subscription."""
Assignment = dict[str, list[TopicPartition]]
"""Member id -> its assigned partitions; contains every member."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """`assign(members, partition counts by topic)`. `is_cooperative`: members keep their partitions during a rebalance (KIP-429)."""

    name: str
    assign: Callable[[Members, Mapping[str, int]], Assignment]
    is_cooperative: bool = False


def assign_range(members: Members, counts: Mapping[str, int]) -> Assignment:
    """Consecutive partitions, topic by topic: equal partition numbers of equally large topics go to the same member."""
    assigned: Assignment = {member: [] for member in members}
    for topic, subscribers in _subscribers(members, counts).items():
        count, number = counts[topic], len(subscribers)
        position = 0
        for index, member in enumerate(subscribers):
            length = count // number + (index < count % number)
            assigned[member] += [TopicPartition(topic, partition) for partition in range(position, position + length)]
            position += length
    return assigned


def assign_round_robin(members: Members, counts: Mapping[str, int]) -> Assignment:
    """All partitions in turn to all members in turn; members that do not subscribe to the topic are skipped."""
    assigned: Assignment = {member: [] for member in members}
    order = sorted_members(members)
    turn = 0
    for topic in sorted(_subscribers(members, counts)):
        for partition in range(counts[topic]):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assigned[order[turn % len(order)]].append(TopicPartition(topic, partition))
            turn += 1
    return assigned


def assign_sticky(members: Members, counts: Mapping[str, int]) -> Assignment:
    """Equal counts, few moves; members report their previous partitions in their user data."""
    claims = {}
    for member, subscription in members.items():
        claims[member] = Claim(*decode_sticky(subscription.user_data))
    return _balance_members(members, counts, claims)


def assign_cooperative_sticky(members: Members, counts: Mapping[str, int]) -> Assignment:
    """Like `assign_sticky`, but a partition that moves is left out until its owner has revoked it."""
    claims = {}
    for member, subscription in members.items():
        # Members without KIP-792 report their generation in the user data.
        generation = subscription.generation if subscription.generation >= 0 else decode_cooperative(subscription.user_data)
        claims[member] = Claim(subscription.owned, generation)
    assigned = _balance_members(members, counts, claims)
    given_up = {partition for member, claim in claims.items() for partition in set(claim.partitions) - set(assigned[member])}
    for member, partitions in assigned.items():
        owned = set(claims[member].partitions)
        assigned[member] = [partition for partition in partitions if partition in owned or partition not in given_up]
    return assigned


def _balance_members(members: Members, counts: Mapping[str, int], claims: Mapping[str, Claim]) -> Assignment:
    return balance({member: frozenset(members[member].topics) for member in sorted_members(members)}, counts, claims)


def sorted_members(members: Members) -> list[str]:
    """Static members by name, then the others by id (MemberInfo.compareTo in AbstractPartitionAssignor.java)."""
    return sorted(members, key=lambda member: (members[member].instance_id is None, members[member].instance_id or member))


def _subscribers(members: Members, counts: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in sorted_members(members):
        for topic in dict.fromkeys(members[member].topics):
            if topic in counts:
                found.setdefault(topic, []).append(member)
    return found


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative_sticky, is_cooperative=True),
    )
}
