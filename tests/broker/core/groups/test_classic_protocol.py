"""The classic protocol on the wire: joins, generations, assignments, members that go, static members, and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from chaffinch.protocol.messages.sync_group import SyncGroupRequest
from tests.broker.core.groups.members import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    ClassicMember,
    assign,
    commit,
    full_disk,
    stable_group,
    state_of,
    subscription,
)
from tests.broker.core_client import Cluster


class TestJoining:
    def test_new_member_joins_again_with_its_member_id(self, cluster: Cluster) -> None:
        """KIP-394."""
        client = cluster.client()
        member = ClassicMember(cluster)
        first = client.ask(member.request())
        assert first.error_code == 79
        assert first.member_id.startswith("test-")
        assert client.ask(member.request()).member_id != first.member_id
        member.id = first.member_id
        assert member.join() is None
        cluster.advance(DELAY_MS)
        assert member.taken().leader == member.id

    @pytest.mark.parametrize("version", range(4))
    def test_join_before_version_4_needs_no_second_request(self, cluster: Cluster, version: int) -> None:
        """A member that cannot send a rebalance timeout has its session timeout for it."""
        member = ClassicMember(cluster)
        member.version = version
        member.send_join()
        cluster.advance(DELAY_MS)
        answer = member.taken()
        assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
        group = cluster.core.state.groups.find(GROUP)
        assert isinstance(group, ClassicGroup)
        assert group.rebalance_timeout_ms == (REBALANCE_MS if version else SESSION_MS)

    def test_each_new_member_extends_the_first_rebalance_up_to_its_timeout(self, cluster: Cluster) -> None:
        members = [ClassicMember(cluster) for _ in range(12)]
        for member in members:
            member.send_join()
            cluster.advance(DELAY_MS - 1)
        assert cluster.steady_ms >= REBALANCE_MS
        answers = [member.taken() for member in members]
        assert [answer.error_code for answer in answers[:10]] == [0] * 10
        assert {answer.generation_id for answer in answers[:10]} == {1}

    def test_single_member_waits_for_the_initial_delay(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        member.send_join()
        cluster.advance(DELAY_MS - 1)
        assert member.taken() is None
        cluster.advance(1)
        assert member.taken().error_code == 0

    def test_only_the_leader_receives_the_members(self, cluster: Cluster) -> None:
        first, second = ClassicMember(cluster), ClassicMember(cluster)
        first.send_join()
        second.send_join()
        cluster.advance(2 * DELAY_MS)
        leader, other = first.taken(), second.taken()
        assert leader.leader == other.leader == first.id
        assert [member.member_id for member in leader.members] == [first.id, second.id]
        assert bytes(leader.members[0].metadata) == subscription("orders")
        assert other.members == []

    def test_common_protocol_with_the_most_votes_is_selected(self, cluster: Cluster) -> None:
        members = [
            ClassicMember(cluster, range=b"r", sticky=b"s"),
            ClassicMember(cluster, sticky=b"s", range=b"r"),
            ClassicMember(cluster, sticky=b"s", range=b"r", mine=b"m"),
        ]
        for member in members:
            member.send_join()
        cluster.advance(REBALANCE_MS)
        assert {member.taken().protocol_name for member in members} == {"sticky"}

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"group_id": ""}, 24),
            ({"session_timeout_ms": 5999}, 26),
            ({"session_timeout_ms": 1_800_001}, 26),
            ({"member_id": "who"}, 25),
            ({"protocol_type": ""}, 23),
            ({"protocols": []}, 23),
            ({"group_id": "other", "member_id": "who"}, 25),
        ],
        ids=str,
    )
    def test_invalid_join_is_refused_with_its_code(self, cluster: Cluster, changes: dict[str, Any], code: int) -> None:
        ClassicMember(cluster).send_join()
        cluster.advance(DELAY_MS)
        answer = cluster.client().ask(ClassicMember(cluster).request().replace(**changes))
        assert (answer.error_code, answer.member_id) == (code, changes.get("member_id", ""))

    @pytest.mark.parametrize(("type_", "protocols"), [("connect", {"range": b""}), ("consumer", {"other": b""})])
    def test_member_with_inconsistent_protocol_is_refused(self, cluster: Cluster, type_: str, protocols: dict[str, Any]) -> None:
        stable_group(cluster)
        stranger = ClassicMember(cluster, **protocols)
        stranger.protocol_type = type_
        assert stranger.join().error_code == 23
        assert state_of(cluster) == "Stable"

    def test_join_after_the_first_member_left_succeeds(self, cluster: Cluster) -> None:
        first, second = ClassicMember(cluster), ClassicMember(cluster, other=b"")
        first.send_join()
        first.client.lose()
        first.client = cluster.client()
        assert first.leave() == 0
        second.send_join()
        cluster.advance(60_000)
        assert second.taken().error_code == 0

    def test_join_at_another_node_is_refused(self) -> None:
        cluster = Cluster(nodes=2)
        wrong = 1 - cluster.coordinator_of(GROUP)
        client = cluster.client(node=wrong)
        assert client.ask(ClassicMember(cluster).request()).error_code == 16


class TestGenerations:
    def test_sync_delivers_every_assignment(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 3)
        assert state_of(cluster) == "Stable"
        assert [member.heartbeat() for member in members] == [0, 0, 0]
        assert members[1].sync().assignment == b"1"

    @pytest.mark.parametrize(("version", "code"), [(4, 0), (5, 23)])
    def test_sync_since_version_5_requires_the_protocol(self, cluster: Cluster, version: int, code: int) -> None:
        (member,) = stable_group(cluster, 1)
        request = SyncGroupRequest(group_id=GROUP, generation_id=member.generation, member_id=member.id)
        assert member.client.ask(request, version).error_code == code

    def test_new_member_makes_all_members_rejoin(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 2)
        newcomer = ClassicMember(cluster)
        newcomer.send_join()
        assert [member.heartbeat() for member in members] == [27, 27]
        assert members[0].sync().error_code == 27
        assert members[0].join() is None
        answer = members[1].join()
        assert (answer.generation_id, answer.leader) == (2, members[0].id)
        assert members[0].taken().generation_id == newcomer.taken().generation_id == 2
        assert [member.heartbeat() for member in members] == [0, 0]
        assign([*members, newcomer])

    def test_member_that_does_not_rejoin_is_removed(self, cluster: Cluster) -> None:
        lazy, busy = stable_group(cluster, 2)
        newcomer = ClassicMember(cluster)
        newcomer.send_join()
        busy.send_join()
        for _ in range(5):
            cluster.advance(REBALANCE_MS // 5 - 1)
            assert lazy.heartbeat() == 27
            assert busy.taken() is None
        cluster.advance(5)
        answer = busy.taken()
        assert [member.member_id for member in answer.members] == [busy.id, newcomer.id]
        assert lazy.heartbeat() == 25

    def test_member_that_never_syncs_is_removed(self, cluster: Cluster) -> None:
        members = [ClassicMember(cluster), ClassicMember(cluster)]
        for member in members:
            member.session_ms = 100_000
            member.send_join()
        cluster.advance(2 * DELAY_MS)
        for member in members:
            member.taken()
        assert members[0].sync({members[0].id: b"a"}).assignment == b"a"
        cluster.advance(REBALANCE_MS)
        assert members[1].heartbeat() == 25
        assert members[0].heartbeat() == 27

    def test_only_a_rejoining_leader_starts_a_rebalance(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        assert follower.join().generation_id == 1
        assert state_of(cluster) == "Stable"
        assert leader.join() is None
        assert follower.heartbeat() == 27

    def test_follower_with_changed_metadata_starts_a_rebalance(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        follower.protocols = {"range": subscription("orders", "more")}
        assert follower.join() is None
        assert leader.join().generation_id == 2

    def test_repeated_join_before_the_assignment_has_the_same_response(self, cluster: Cluster) -> None:
        """The first response was lost: the same again, no rebalance."""
        members = [ClassicMember(cluster), ClassicMember(cluster)]
        for member in members:
            member.send_join()
        cluster.advance(2 * DELAY_MS)
        first = [member.taken() for member in members]
        assert [member.join() for member in members] == first

    def test_join_repeated_over_another_connection_does_not_disturb_a_slow_rebalance(self, cluster: Cluster) -> None:
        """A client that doubts its connection joins again under its id. The other member is waited for as before."""
        slow, other = stable_group(cluster, 2)
        newcomer = ClassicMember(cluster)
        newcomer.send_join()
        for _ in range(3):
            cluster.advance(SESSION_MS // 2)
            other.client = cluster.client()
            assert other.join() is None
            assert slow.heartbeat() == 27
        assert slow.join().generation_id == 2
        assert other.taken().generation_id == newcomer.taken().generation_id == 2
        assert len({slow.id, other.id, newcomer.id}) == 3

    def test_wrong_generation_or_protocol_is_refused(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        follower.generation += 1
        assert follower.heartbeat() == 22
        assert follower.sync().error_code == 22
        assert follower.commit() == 22
        follower.generation -= 1
        follower.protocol = "cooperative-sticky"
        assert follower.sync().error_code == 23
        follower.id = "who"
        assert (follower.heartbeat(), follower.sync().error_code, follower.commit()) == (25, 25, 25)
        assert leader.heartbeat() == 0

    def test_later_of_two_sync_requests_gets_the_assignment(self, cluster: Cluster) -> None:
        """A client that has lost its connection asks again while the broker still waits for the leader."""
        leader, follower = ClassicMember(cluster), ClassicMember(cluster)
        leader.send_join()
        follower.send_join()
        cluster.advance(2 * DELAY_MS)
        leader.taken(), follower.taken()
        follower.send_sync()
        first, follower.client = follower.client, cluster.client()
        assert follower.sync() is None
        assert first.answers.pop().error_code == 27
        leader.sync({leader.id: b"0", follower.id: b"1"})
        assert follower.taken().assignment == b"1"

    def test_commit_between_join_and_sync_is_refused(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        member.send_join()
        cluster.advance(DELAY_MS)
        member.taken()
        assert member.commit() == 27
        member.sync({member.id: b""})
        assert member.commit() == 0


class TestSessions:
    def test_silent_member_is_removed_when_its_session_expires(self, cluster: Cluster) -> None:
        leader, silent = stable_group(cluster, 2)
        cluster.advance(SESSION_MS - 1)
        assert leader.heartbeat() == 0
        cluster.advance(1)
        assert leader.heartbeat() == 27
        assert silent.heartbeat() == 25
        assert leader.join().generation_id == 2
        assert any("its session timed out" in line for line in cluster.lines)

    def test_heartbeats_and_commits_extend_the_session(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        for action in (member.heartbeat, member.commit) * 3:
            cluster.advance(SESSION_MS - 1)
            assert action() == 0
        cluster.advance(SESSION_MS)
        assert member.heartbeat() == 25
        assert state_of(cluster) == "Empty"

    def test_member_waiting_for_a_response_does_not_expire(self, cluster: Cluster) -> None:
        first, second = stable_group(cluster, 2)
        first.session_ms = second.session_ms = 6000
        newcomer = ClassicMember(cluster)
        newcomer.send_join()
        first.send_join()
        cluster.advance(9000)
        assert first.taken() is None
        assert second.heartbeat() == 27
        second.send_join()
        assert first.taken().generation_id == 2

    def test_unused_member_id_expires(self, cluster: Cluster) -> None:
        client, member = cluster.client(), ClassicMember(cluster)
        member.id = client.ask(member.request()).member_id
        cluster.advance(SESSION_MS)
        assert member.join().error_code == 25

    def test_new_member_with_lost_connection_expires_after_five_minutes(self, cluster: Cluster) -> None:
        """It has no heartbeats yet: five minutes for its first generation."""
        members = stable_group(cluster, 1)
        members[0].rebalance_ms = 1_000_000
        members[0].session_ms = 1_000_000
        members[0].send_join()
        assert members[0].taken().generation_id == 2
        gone = ClassicMember(cluster)
        gone.send_join()
        gone.client.lose()
        cluster.advance(299_999)
        assert state_of(cluster) == "PreparingRebalance"
        assert len(cluster.core.state.groups.find(GROUP).members) == 2  # type: ignore[union-attr]
        cluster.advance(1)
        assert len(cluster.core.state.groups.find(GROUP).members) == 1  # type: ignore[union-attr]


class TestLeaving:
    def test_leaving_member_makes_the_others_rejoin(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        assert leader.leave() == 0
        assert follower.heartbeat() == 27
        answer = follower.join()
        assert (answer.generation_id, answer.leader, len(answer.members)) == (2, follower.id, 1)

    def test_last_leaving_member_leaves_an_empty_group(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        assert member.leave() == 0
        assert state_of(cluster) == "Empty"
        assert member.leave() == 25

    def test_leave_before_version_3_has_the_code_in_the_response(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        request = LeaveGroupRequest(group_id=GROUP, member_id=member.id)
        assert [cluster.client().ask(request, 2).error_code for _ in range(2)] == [0, 25]

    def test_several_members_leave_in_one_request(self, cluster: Cluster) -> None:
        static = ClassicMember(cluster, "i-1")
        static.send_join()
        cluster.advance(DELAY_MS)
        static.taken()
        members = [
            MemberIdentity(member_id="", group_instance_id="i-1"),
            MemberIdentity(member_id="who"),
            MemberIdentity(member_id="", group_instance_id="i-2"),
        ]
        answer = cluster.client().ask(LeaveGroupRequest(group_id=GROUP, members=members))
        assert (answer.error_code, [member.error_code for member in answer.members]) == (0, [0, 25, 25])
        assert state_of(cluster) == "Empty"

    def test_waiting_member_removed_by_another_is_answered(self, cluster: Cluster) -> None:
        waiting = ClassicMember(cluster, "i-1")
        waiting.send_join()
        members = [MemberIdentity(member_id="", group_instance_id="i-1")]
        assert cluster.client().ask(LeaveGroupRequest(group_id=GROUP, members=members)).members[0].error_code == 0
        assert waiting.taken().error_code == 25

    @pytest.mark.parametrize(("group", "code"), [("", 24), ("none", 0)])
    def test_leaving_a_missing_group_is_refused(self, cluster: Cluster, group: str, code: int) -> None:
        answer = cluster.client().ask(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m")]))
        assert answer.error_code == code
        assert [member.error_code for member in answer.members] == ([25] if code == 0 else [])


class TestRestart:
    @pytest.mark.parametrize("kill", [True, False])
    def test_members_keep_their_generation_over_a_restart(self, cluster: Cluster, kill: bool) -> None:
        members = stable_group(cluster, 2)
        cluster.restart(kill=kill)
        for member in members:
            member.client = cluster.client()
        assert [member.heartbeat() for member in members] == [0, 0]
        assert members[1].sync().assignment == b"1"
        assert members[0].commit() == 0
        assert members[1].join().generation_id == 1, "same metadata: no rebalance"

    def test_silent_members_get_a_new_session_after_a_restart(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 2)
        cluster.advance(SESSION_MS - 1)
        cluster.restart()
        cluster.advance(SESSION_MS - 1)
        assert state_of(cluster) == "Stable"
        cluster.advance(1)
        assert state_of(cluster) == "Empty"
        members[0].client = cluster.client()
        assert members[0].heartbeat() == 25

    def test_replaced_static_member_is_fenced_after_a_restart(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster, "i-0")
        member.send_join()
        cluster.advance(DELAY_MS)
        member.taken()
        member.sync({member.id: b"mine"})
        again = ClassicMember(cluster, "i-0")
        again.join()
        cluster.restart()
        again.client, member.client = cluster.client(), cluster.client()
        assert (again.sync().assignment, member.heartbeat()) == (b"mine", 82)

    def test_empty_group_keeps_its_generation_over_a_restart(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        member.leave()
        cluster.restart()
        assert state_of(cluster) == "Empty"
        again = ClassicMember(cluster)
        again.send_join()
        cluster.advance(DELAY_MS)
        assert again.taken().generation_id == 3

    def test_heartbeats_and_joins_are_not_written_to_the_journal(self, cluster: Cluster) -> None:
        """Heartbeats, joins and pending ids are not written."""
        members = stable_group(cluster, 2)
        journal = cluster.core._journals["offsets"]
        before = journal.size_bytes
        for _ in range(100):
            cluster.advance(1000)
            assert {member.heartbeat() for member in members} == {0}
            cluster.client().ask(ClassicMember(cluster).request())
        assert journal.size_bytes == before


class TestFullDisk:
    def test_assignment_that_cannot_be_written_is_not_delivered(self, cluster: Cluster) -> None:
        members = [ClassicMember(cluster), ClassicMember(cluster)]
        for member in members:
            member.send_join()
        cluster.advance(2 * DELAY_MS)
        for member in members:
            member.taken()
        members[1].send_sync()
        with full_disk(cluster):
            assert members[0].sync({members[0].id: b"a"}) is None
            assert members[1].taken().error_code == 16
            cluster.advance(1000)
            assert members[0].taken().error_code == 16
        assert state_of(cluster) == "PreparingRebalance"
        members[0].send_join()
        members[1].send_join()
        assert [member.taken().generation_id for member in members] == [2, 2]
        assign(members)


def test_commit_from_outside_a_group_with_members_is_refused(cluster: Cluster) -> None:
    stable_group(cluster, 1)
    assert commit(cluster.client()) == 25
    assert commit(cluster.client(), group="unused") == 0
    assert commit(cluster.client(), group="none", generation=1) == 69
    assert commit(cluster.client(), group="none", generation=1, version=8) == 22
