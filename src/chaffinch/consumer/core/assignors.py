"""Who reads what: the group's leader gives each partition to one member that subscribes to its topic. Pure.

`range` and `roundrobin` give what RangeAssignor.java and RoundRobinAssignor.java give without racks, partition by partition, so that it
does not matter which client leads. The sticky ones keep to the same promises as Kafka's (numbers as equal as subscriptions allow, then as
few moves as possible), not to the same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from chaffinch.consumer.core.group_protocol import MemberSubscription, decode_cooperative, decode_sticky
from chaffinch.consumer.core.sticky import Claim, share
from chaffinch.identifiers import TopicPartition

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
    order = in_order(members)
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
    for member, said in members.items():
        claims[member] = Claim(*decode_sticky(said.user_data))
    return _share(members, counts, claims)


def assign_cooperative_sticky(members: Members, counts: Mapping[str, int]) -> Assignment:
    """As `assign_sticky`, but what is to go from one member to another is left out until its owner has given it up."""
    claims = {}
    for member, said in members.items():
        # Members of before KIP-792 tell their generation in the user data.
        generation = said.generation if said.generation >= 0 else decode_cooperative(said.user_data)
        claims[member] = Claim(said.owned, generation)
    assigned = _share(members, counts, claims)
    given_up = {partition for member, claim in claims.items() for partition in set(claim.partitions) - set(assigned[member])}
    for member, partitions in assigned.items():
        owned = set(claims[member].partitions)
        assigned[member] = [partition for partition in partitions if partition in owned or partition not in given_up]
    return assigned


def _share(members: Members, counts: Mapping[str, int], claims: Mapping[str, Claim]) -> Assignment:
    return share({member: frozenset(members[member].topics) for member in in_order(members)}, counts, claims)


def in_order(members: Members) -> list[str]:
    """Static members by their names, then the others by their ids (MemberInfo.compareTo in AbstractPartitionAssignor.java)."""
    return sorted(members, key=lambda member: (members[member].instance_id is None, members[member].instance_id or member))


def _subscribers(members: Members, counts: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in in_order(members):
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
