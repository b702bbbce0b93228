"""Shares partitions so that numbers are as equal as subscriptions allow, and members keep what they had where that costs no equality.

First everybody keeps what it had; what nobody has goes to who has least; then partitions move, one by one, along the shortest way from a
member with more to one that has at least two fewer (possibly through others that subscribe to both topics). Each way makes the sum of
squares smaller, so this ends, and where no way is left no other sharing is more equal. With equal subscriptions every way has one step.

Promises as of AbstractStickyAssignor.java; when two members claim a partition the later generation has it, of one generation neither.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from chaffinch.identifiers import TopicPartition


class Claim(NamedTuple):
    """What a member had, and since which generation."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1


Loads: TypeAlias = dict[str, dict[str, list[int]]]
"""Member -> topic -> partition numbers, ascending."""
Step: TypeAlias = tuple[str, str, str]
"""Giver, topic, receiver."""


def share(topics: Mapping[str, frozenset[str]], counts: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[str, list[TopicPartition]]:
    """Member -> partitions, sorted. `topics` are the members' subscriptions, in the order in which members count; `counts` the topics'
    numbers of partitions. Topics that nobody wants or nobody knows are left out."""
    owners = _owners(topics, counts, claims)
    loads: Loads = {member: {} for member in topics}
    for partition, member in sorted(owners.items()):
        loads[member].setdefault(partition.topic, []).append(partition.partition)
    subscribers = {topic: [member for member in topics if topic in topics[member]] for topic in counts}
    for topic in sorted(counts, key=lambda name: (len(subscribers[name]), name)):
        missing = [number for number in range(counts[topic]) if TopicPartition(topic, number) not in owners]
        _give_out(loads, topic, missing, subscribers[topic])
    while way := _way_to_even(loads, subscribers):
        for giver, topic, receiver in way:
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


def _give_out(loads: Loads, topic: str, missing: list[int], subscribers: list[str]) -> None:
    """Partitions that nobody has, to who has least. Called for topics with few subscribers first: the others can make up for it."""
    queue = [(_size(loads[member]), index, member) for index, member in enumerate(subscribers)]
    heapq.heapify(queue)
    for number in missing if subscribers else ():
        size, index, member = queue[0]
        heapq.heapreplace(queue, (size + 1, index, member))
        insort(loads[member].setdefault(topic, []), number)


def _way_to_even(loads: Loads, subscribers: Mapping[str, list[str]]) -> list[Step]:
    """A way from who has much to who has little; empty when there is none."""
    sizes = {member: _size(load) for member, load in loads.items()}
    least = min(sizes.values(), default=0)
    for start in sorted(loads, key=lambda member: -sizes[member]):
        if sizes[start] < least + 2:
            break
        way = _way_down(start, loads, sizes, subscribers)
        if way:
            return way
    return []


def _way_down(start: str, loads: Loads, sizes: Mapping[str, int], subscribers: Mapping[str, list[str]]) -> list[Step]:
    """The shortest way from `start` to a member with at least two fewer; of several the one to the member with fewest."""
    came: dict[str, Step] = {}
    level = [start]
    while level:
        reached: list[str] = []
        for giver in level:
            for topic in sorted(topic for topic, numbers in loads[giver].items() if numbers):
                for member in subscribers[topic]:
                    if member not in came and member != start:
                        came[member] = giver, topic, member
                        reached.append(member)
        ends = [member for member in reached if sizes[member] <= sizes[start] - 2]
        if ends:
            return _traced(min(ends, key=sizes.__getitem__), came)
        level = reached
    return []


def _traced(end: str, came: Mapping[str, Step]) -> list[Step]:
    way: list[Step] = []
    member = end
    while member in came:
        way.append(came[member])
        member = came[member][0]
    return way[::-1]
