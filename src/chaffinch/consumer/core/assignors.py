"""Who reads what: the group's leader gives each partition to one member that subscribes to its topic. Pure.

`range` and `roundrobin` give what RangeAssignor.java and RoundRobinAssignor.java give without racks, partition by partition, so that it
does not matter which client leads. The sticky ones keep to the same promises as Kafka's (numbers as equal as subscriptions allow, then as
few moves as possible), not to the same choices: see `balance`.
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
    """What a member had, and since which generation."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1


Loads: TypeAlias = dict[str, dict[str, list[int]]]
"""Member -> topic -> partition numbers, ascending."""
Move: TypeAlias = tuple[str, str, str]
"""Giver, topic, receiver."""


def balance(
    topics: Mapping[str, frozenset[str]], counts: Mapping[str, int], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Member -> partitions, sorted: numbers as equal as subscriptions allow, and members keep what they had where that costs no equality.

    `topics` are the members' subscriptions, in the order in which members count; `counts` the topics' numbers of partitions. Topics
    without a subscriber or a number are left out.

    First each member keeps what it had; the other partitions go to the members with fewest; then partitions move, one by one, along the
    shortest way from a member with more to one that has at least two fewer (possibly through others that subscribe to both topics). Each
    way makes the sum of squares smaller, so this ends, and where no way is left no other sharing is more equal. With equal subscriptions
    every way has one step. Promises as of AbstractStickyAssignor.java; when two members claim a partition the later generation has it, of
    one generation neither.
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
    """Who keeps what: partitions that are there, still subscribed to, and claimed once in the latest generation that claims them."""
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
    """Partitions that nobody has, to who has least. Called for topics with few subscribers first: the others can make up for it."""
    queue = [(_size(loads[member]), index, member) for index, member in enumerate(subscribers)]
    heapq.heapify(queue)
    for number in missing if subscribers else ():
        size, index, member = queue[0]
        heapq.heapreplace(queue, (size + 1, index, member))
        insort(loads[member].setdefault(topic, []), number)


def _balancing_moves(loads: Loads, subscribers: Mapping[str, list[str]]) -> list[Move]:
    """A way from who has much to who has little; empty when there is none."""
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
    """The shortest way from `start` to a member with at least two fewer; of several the one to the member with fewest."""
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
"""Member id -> what it said."""
Assignment = dict[str, list[TopicPartition]]
"""Member id -> what it is to have; every member is there."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """`assign(members, partition counts by topic)`. `is_cooperative`: members keep what they have while the group rebalances (KIP-429)."""

    name: str
    assign: Callable[[Members, Mapping[str, int]], Assignment]
    is_cooperative: bool = False


def assign_range(members: Members, counts: Mapping[str, int]) -> Assignment:
    """Topic by topic neighbouring partitions together: equal partitions of equally large topics meet at one member."""
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
    """All partitions in turn to all members in turn; who does not subscribe to the topic is passed over."""
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
    """Equal numbers, few moves; members say in their user data what they had."""
    claims = {}
    for member, subscription in members.items():
        claims[member] = Claim(*decode_sticky(subscription.user_data))
    return _balance_members(members, counts, claims)


def assign_cooperative_sticky(members: Members, counts: Mapping[str, int]) -> Assignment:
    """As `assign_sticky`, but what is to go from one member to another is left out until its owner has given it up."""
    claims = {}
    for member, subscription in members.items():
        # Members of before KIP-792 tell their generation in the user data.
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
    """Static members by their names, then the others by their ids (MemberInfo.compareTo in AbstractPartitionAssignor.java)."""
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
