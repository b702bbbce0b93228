"""KIP-848 on the wire: how much memory groups take, members or none; one that goes costs the same however many others there are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.broker.core.groups.classic_group import Client
from chaffinch.broker.core.groups.consumer_group import Change, ConsumerGroup, Subscriptions
from chaffinch.broker.core.groups.consumer_group import ConsumerMember as Member
from chaffinch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tests.broker.core.groups.members import GROUP, ConsumerMember, commit, consumer_group_of
from tests.broker.core_client import Cluster

CHECK_MS = 600_000
"""offsets.retention.check.interval.ms"""


def come_and_go(cluster: Cluster, number: int) -> int:
    """A group is made and left; the code of the join."""
    member = ConsumerMember(cluster, "m", group=f"group-{number}")
    code: int = member.join().error_code
    if code == 0:
        assert member.leave().error_code == 0
    return code


def described(cluster: Cluster, group: str) -> tuple[int, str]:
    """(code, state)."""
    answer = cluster.client().ask(ConsumerGroupDescribeRequest(group_ids=[group])).groups[0]
    return answer.error_code, answer.group_state


class TestMemory:
    @pytest.fixture(autouse=True)
    def small(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster.core.state.groups._context.memory, "_bytes_max", 20_000)

    def test_empty_groups_count_for_the_memory_limit(self, cluster: Cluster) -> None:
        codes = [come_and_go(cluster, number) for number in range(20)]
        made = codes.count(0)
        assert codes == [0] * made + [81] * (20 - made)
        assert 5 <= made < 10
        assert cluster.core.state.groups._context.memory._total > 2000 * made

    def test_empty_groups_are_removed_by_the_next_offset_check(self, cluster: Cluster) -> None:
        """As in Apache Kafka, which describes such a group as Empty until then."""
        for number in range(20):
            come_and_go(cluster, number)
        assert (described(cluster, "group-0"), described(cluster, "group-19")) == ((0, "Empty"), (69, ""))
        cluster.advance(CHECK_MS)
        assert described(cluster, "group-0") == (69, "")
        assert cluster.core.state.groups._context.memory._total == 0
        assert come_and_go(cluster, 19) == 0

    def test_empty_group_with_offsets_stays_and_counts_after_a_restart(self, cluster: Cluster) -> None:
        come_and_go(cluster, 0)
        commit(cluster.client(), 3, group="group-0")
        before = cluster.core.state.groups._context.memory._total
        assert before > 0
        cluster.advance(CHECK_MS)
        cluster.restart()
        assert described(cluster, "group-0") == (0, "Empty")
        assert cluster.core.state.groups._context.memory._total == before

    def test_members_with_patterns_are_limited_by_memory(self, cluster: Cluster) -> None:
        codes = [ConsumerMember(cluster, f"m{number}").join(pattern="orders").error_code for number in range(30)]
        made = codes.count(0)
        assert codes == [0] * made + [81] * (30 - made)
        assert 5 <= made < 20
        total = cluster.core.state.groups._context.memory._total
        assert total < 25_000

    def test_existing_member_stays_when_memory_is_full(self, cluster: Cluster) -> None:
        member = ConsumerMember(cluster, "a")
        member.join()
        codes = [ConsumerMember(cluster, f"m{number}").join().error_code for number in range(20)]
        assert codes[-1] == 81
        assert member.beat().error_code == 0


class TestCost:
    def test_removing_a_member_reads_no_other_members(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """They may be thousands, with thousands of names each: when all left at once, the broker answered no client for seconds."""
        count = 40
        for number in range(count):
            assert ConsumerMember(cluster, f"m{number}").join(["orders", "others"]).error_code == 0
        read: list[int] = []
        topics: Any = vars(Member)["topics"]

        def counting_topics(member: Member) -> Any:
            read.append(1)
            return topics.__get__(member)

        with monkeypatch.context() as patch:
            patch.setattr(Member, "topics", property(counting_topics))
            cluster.advance(60_000)
        assert consumer_group_of(cluster).is_empty
        assert count <= len(read) <= 10 * count


def member(name: str, *topics: str, pattern: str = "") -> Member:
    return Member(member_id=name, client=Client(client_id="c", host="h"), topics=frozenset(topics), pattern=pattern)


def counted(members: Mapping[str, Member]) -> Subscriptions:
    """From the beginning."""
    result = Subscriptions()
    for one in members.values():
        for name in one.topics:
            result.names[name] = result.names.get(name, 0) + 1
        result.patterns[one.pattern] = result.patterns.get(one.pattern, 0) + 1
    return result


@pytest.mark.parametrize("seed", range(20))
def test_counted_subscriptions_equal_those_of_the_members(seed: int) -> None:
    rng = random.Random(seed)
    group = ConsumerGroup(group_id=GROUP)

    def any_member(name: str) -> Member | None:
        topics: Any = rng.sample("abcd", rng.randrange(4))
        return None if rng.random() < 0.3 else member(name, *topics, pattern=rng.choice(["", "p", "q"]))

    for _ in range(50):
        changes = {name: any_member(name) for name in rng.sample("xyz", rng.randrange(1, 4))}
        promised = group.subscriptions.after(group.members, changes)
        group.apply(Change(epoch=1, assignment_epoch=1, topics={}, members=changes))
        assert group.subscriptions == promised == counted(group.members)
        for topic in "abcd":
            assert group.is_subscribed_to(topic) == any(topic in one.topics for one in group.members.values())
