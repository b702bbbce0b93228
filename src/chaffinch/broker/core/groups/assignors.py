"""Server-side assignors of KIP-848: compute which member of a consumer group owns which partition.

Pure functions of subscriptions, partition counts and the previous assignment. Every partition with subscribers is assigned to exactly one
of them, and equal input gives equal output.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID


class TopicIdPartition(NamedTuple):
    """A partition identified by its topic id: a topic that was recreated under the same name is a different one."""

    topic_id: UUID
    partition: int


Partitions = frozenset[TopicIdPartition]
Subscriptions = Mapping[str, frozenset[UUID]]
"""Member id -> topic ids; the order of the members matters."""
Assignor = Callable[[Subscriptions, Mapping[UUID, int], Mapping[str, Partitions]], dict[str, Partitions]]
"""(subscriptions, partition counts, previous assignment) -> assignment of each member in the subscriptions."""


def assign_range(subscriptions: Subscriptions, counts: Mapping[UUID, int], previous: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Range assignment: contiguous partitions, topic by topic; equal partitions of equally large topics go to the same member."""
    assigned: dict[str, set[TopicIdPartition]] = {member: set() for member in subscriptions}
    subscribers = _subscribers(subscriptions)
    for topic, count in counts.items():
        members = subscribers.get(topic, [])
        position = 0
        for number, member in enumerate(members):
            share = count // len(members) + (number < count % len(members))
            assigned[member].update(TopicIdPartition(topic, index) for index in range(position, position + share))
            position += share
    return _frozen(assigned)


def assign_uniform(subscriptions: Subscriptions, counts: Mapping[UUID, int], previous: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Uniform assignment: as balanced as subscriptions allow, moving as few partitions as possible."""
    if len(set(subscriptions.values())) <= 1:
        return _assign_alike(subscriptions, counts, previous)
    return _assign_unlike(subscriptions, counts, previous)


def _assign_alike(subscriptions: Subscriptions, counts: Mapping[UUID, int], previous: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """All members have the same subscription: each gets a quota, some one partition more."""
    everything = [partition for topics in list(subscriptions.values())[:1] for partition in _partitions(topics, counts)]
    known = set(everything)
    quota, extras = divmod(len(everything), max(len(subscriptions), 1))
    assigned: dict[str, set[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for member in subscriptions:
        retained = sorted((previous.get(member, frozenset()) & known) - taken)
        if len(retained) > quota and extras > 0:
            extras -= 1
            assigned[member] = set(retained[: quota + 1])
        else:
            assigned[member] = set(retained[:quota])
        taken |= assigned[member]
    free = iter([partition for partition in everything if partition not in taken])
    for own in assigned.values():
        free_slots = quota - len(own)
        if free_slots >= 0 and extras > 0:
            extras -= 1
            free_slots += 1
        own.update(partition for _, partition in zip(range(free_slots), free, strict=False))
    return _frozen(assigned)


def _assign_unlike(subscriptions: Subscriptions, counts: Mapping[UUID, int], previous: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Members have different subscriptions: first assign every partition, then move partitions from the most to the least loaded member
    until the load is balanced.
    """
    subscribers = _subscribers(subscriptions)
    order = {member: number for number, member in enumerate(subscriptions)}
    assigned: dict[str, set[TopicIdPartition]] = {member: set() for member in subscriptions}
    owner: dict[TopicIdPartition, str] = {}

    def load(member: str) -> tuple[int, int]:
        return len(assigned[member]), order[member]

    for member, topics in subscriptions.items():
        for partition in previous.get(member, frozenset()):
            if partition.topic_id in topics and partition.partition < counts.get(partition.topic_id, 0) and partition not in owner:
                owner[partition] = member
                assigned[member].add(partition)
    # Topics with few subscribers first: the others can compensate.
    topics_by_choice = sorted((topic for topic in counts if topic in subscribers), key=lambda topic: (len(subscribers[topic]), topic))
    for topic in topics_by_choice:
        queue = [(len(assigned[member]), order[member], member) for member in subscribers[topic]]
        heapq.heapify(queue)
        for partition in _partitions((topic,), counts):
            if partition not in owner:
                count, number, member = queue[0]
                heapq.heapreplace(queue, (count + 1, number, member))
                owner[partition] = member
                assigned[member].add(partition)
    is_even = False
    while not is_even:  # Terminates: each move decreases the sum of squares.
        is_even = True
        for topic in topics_by_choice:
            least = min(subscribers[topic], key=load)
            for partition in _partitions((topic,), counts):
                if len(assigned[owner[partition]]) > len(assigned[least]) + 1:
                    assigned[owner[partition]].remove(partition)
                    assigned[least].add(partition)
                    owner[partition] = least
                    least = min(subscribers[topic], key=load)
                    is_even = False
    return _frozen(assigned)


def _partitions(topics: frozenset[UUID] | tuple[UUID, ...], counts: Mapping[UUID, int]) -> Iterator[TopicIdPartition]:
    for topic in sorted(topics):
        for index in range(counts.get(topic, 0)):
            yield TopicIdPartition(topic, index)


def _subscribers(subscriptions: Subscriptions) -> dict[UUID, list[str]]:
    found: dict[UUID, list[str]] = {}
    for member, topics in subscriptions.items():
        for topic in topics:
            found.setdefault(topic, []).append(member)
    return found


def _frozen(assigned: Mapping[str, set[TopicIdPartition]]) -> dict[str, Partitions]:
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By name; the first is the default of groups whose members request none."""
