"""Static members of classic groups (KIP-345): a restarted instance takes its own place, and fences who used it before."""

from __future__ import annotations

import pytest

from chaffinch.broker.core.groups.classic_group import ClassicGroup
from tests.broker.core.groups.members import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, ClassicMember, assign, subscription
from tests.broker.core_client import Cluster


@pytest.fixture
def members(cluster: Cluster) -> list[ClassicMember]:
    members = [ClassicMember(cluster, "i-0"), ClassicMember(cluster, "i-1")]
    for member in members:
        member.send_join()
    cluster.advance(2 * DELAY_MS)
    for member in members:
        member.taken()
    assign(members)
    return members


@pytest.mark.parametrize("index", [0, 1])
def test_restarted_instance_replaces_its_member_without_a_rebalance(cluster: Cluster, members: list[ClassicMember], index: int) -> None:
    other = members[1 - index]
    again = ClassicMember(cluster, f"i-{index}")
    answer = again.join()
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id != members[index].id
    assert (answer.skip_assignment, len(answer.members)) == ((True, 2) if index == 0 else (False, 0))
    assert again.sync().assignment == b"%d" % index
    assert (other.heartbeat(), again.heartbeat()) == (0, 0)


def test_old_member_id_is_fenced(cluster: Cluster, members: list[ClassicMember]) -> None:
    old = members[1]
    ClassicMember(cluster, "i-1").join()
    assert (old.heartbeat(), old.sync().error_code, old.commit(), old.leave()) == (82, 82, 82, 82)
    assert old.join().error_code == 82


def test_restarted_leader_before_version_9_receives_the_old_leader(cluster: Cluster, members: list[ClassicMember]) -> None:
    """So that it takes itself for a follower, and fetches the assignment that is."""
    again = ClassicMember(cluster, "i-0")
    again.version = 8
    answer = again.join()
    assert (answer.leader, answer.members) == (members[0].id, [])


def test_changed_protocols_start_a_rebalance_when_the_selection_changes(cluster: Cluster, members: list[ClassicMember]) -> None:
    again = ClassicMember(cluster, "i-1", sticky=b"", range=subscription("orders"))
    assert again.join().generation_id == 1, "the others only know range"
    assert members[0].leave() == 0
    assert again.join().protocol_name == "sticky"
    assign([again])
    third = ClassicMember(cluster, "i-1", range=subscription("orders"))
    assert (third.join().protocol_name, third.generation) == ("range", 3)
    assert ClassicMember(cluster, "i-1", other=b"").join().error_code == 23


def test_restart_while_awaiting_the_assignment_starts_a_rebalance(cluster: Cluster, members: list[ClassicMember]) -> None:
    members[0].send_join()
    members[1].send_join()
    assert [member.taken().generation_id for member in members] == [2, 2]
    members[1].send_sync()
    again = ClassicMember(cluster, "i-1")
    assert again.join() is None
    assert members[1].taken().error_code in (27, 82)
    assert members[0].heartbeat() == 27


def test_static_member_stays_until_its_session_expires(cluster: Cluster, members: list[ClassicMember]) -> None:
    cluster.advance(SESSION_MS - 1)
    assert members[0].heartbeat() == 0
    cluster.advance(1)
    assert members[0].heartbeat() == 27
    assert members[0].join().generation_id == 2


def test_static_member_that_does_not_rejoin_stays(cluster: Cluster, members: list[ClassicMember]) -> None:
    members[1].session_ms = 100_000
    members[1].protocols = {"range": subscription("orders", "more")}
    members[1].send_join()
    members[0].send_join()
    for member in members:
        member.taken()
    assign(members)
    newcomer = ClassicMember(cluster)
    newcomer.send_join()
    members[0].send_join()
    cluster.advance(REBALANCE_MS)
    answer = members[0].taken()
    assert {member.group_instance_id for member in answer.members} == {"i-0", "i-1", None}


def test_leader_is_restored_after_a_restart(cluster: Cluster, members: list[ClassicMember]) -> None:
    silent, leader = members
    leader.protocols = {"range": subscription("bills")}
    leader.send_join()
    for _ in range(REBALANCE_MS // DELAY_MS):
        cluster.advance(DELAY_MS)
        assert silent.heartbeat() in (27, 22)
    assert leader.taken().leader == leader.id
    assign([leader])
    cluster.restart()
    group = cluster.core.state.groups.find(GROUP)
    assert isinstance(group, ClassicGroup)
    assert (list(group.members), group.leader) == ([silent.id, leader.id], leader.id)
    assert group.subscribed_topics == frozenset({"orders", "bills"})
