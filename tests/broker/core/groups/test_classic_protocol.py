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
    def test_a_newcomer_comes_again_with_the_id_it_is_given(self, cluster: Cluster) -> None:
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
    def test_before_version_4_it_is_in_at_once(self, cluster: Cluster, version: int) -> None:
        """Whoever cannot say how long a rebalance may take has the session's time for it."""
        member = ClassicMember(cluster)
        member.version = version
        member.send_join()
        cluster.advance(DELAY_MS)
        answer = member.taken()
        assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
        group = cluster.core.state.groups.find(GROUP)
        assert isinstance(group, ClassicGroup)
        assert group.rebalance_timeout_ms == (REBALANCE_MS if version else SESSION_MS)

    def test_each_newcomer_makes_the_first_rebalance_longer_up_to_the_rebalance_timeout(self, cluster: Cluster) -> None:
        members = [ClassicMember(cluster) for _ in range(12)]
        for member in members:
            member.send_join()
            cluster.advance(DELAY_MS - 1)
        assert cluster.steady_ms >= REBALANCE_MS
        answers = [member.taken() for member in members]
        assert [answer.error_code for answer in answers[:10]] == [0] * 10
        assert {answer.generation_id for answer in answers[:10]} == {1}

    def test_alone_it_waits_for_the_initial_delay_exactly(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        member.send_join()
        cluster.advance(DELAY_MS - 1)
        assert member.taken() is None
        cluster.advance(1)
        assert member.taken().error_code == 0

    def test_only_the_leader_is_told_the_members(self, cluster: Cluster) -> None:
        first, second = ClassicMember(cluster), ClassicMember(cluster)
        first.send_join()
        second.send_join()
        cluster.advance(2 * DELAY_MS)
        leader, other = first.taken(), second.taken()
        assert leader.leader == other.leader == first.id
        assert [member.member_id for member in leader.members] == [first.id, second.id]
        assert bytes(leader.members[0].metadata) == subscription("orders")
        assert other.members == []

    def test_the_protocol_with_the_most_votes_of_those_all_have(self, cluster: Cluster) -> None:
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
    def test_refusals(self, cluster: Cluster, changes: dict[str, Any], code: int) -> None:
        ClassicMember(cluster).send_join()
        cluster.advance(DELAY_MS)
        answer = cluster.client().ask(ClassicMember(cluster).request().replace(**changes))
        assert (answer.error_code, answer.member_id) == (code, changes.get("member_id", ""))

    @pytest.mark.parametrize(("type_", "protocols"), [("connect", {"range": b""}), ("consumer", {"other": b""})])
    def test_who_cannot_work_with_the_others(self, cluster: Cluster, type_: str, protocols: dict[str, Any]) -> None:
        stable_group(cluster)
        stranger = ClassicMember(cluster, **protocols)
        stranger.protocol_type = type_
        assert stranger.join().error_code == 23
        assert state_of(cluster) == "Stable"

    def test_who_comes_after_the_first_one_has_left_again(self, cluster: Cluster) -> None:
        first, second = ClassicMember(cluster), ClassicMember(cluster, other=b"")
        first.send_join()
        first.client.lose()
        first.client = cluster.client()
        assert first.leave() == 0
        second.send_join()
        cluster.advance(60_000)
        assert second.taken().error_code == 0

    def test_another_node_coordinates(self) -> None:
        cluster = Cluster(nodes=2)
        wrong = 1 - cluster.coordinator_of(GROUP)
        client = cluster.client(node=wrong)
        assert client.ask(ClassicMember(cluster).request()).error_code == 16


class TestGenerations:
    def test_assignments_reach_everybody(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 3)
        assert state_of(cluster) == "Stable"
        assert [member.heartbeat() for member in members] == [0, 0, 0]
        assert members[1].sync().assignment == b"1"

    @pytest.mark.parametrize(("version", "code"), [(4, 0), (5, 23)])
    def test_from_version_5_on_the_protocol_must_be_named(self, cluster: Cluster, version: int, code: int) -> None:
        (member,) = stable_group(cluster, 1)
        request = SyncGroupRequest(group_id=GROUP, generation_id=member.generation, member_id=member.id)
        assert member.client.ask(request, version).error_code == code

    def test_a_member_that_comes_makes_all_join_again(self, cluster: Cluster) -> None:
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

    def test_members_that_do_not_join_again_are_left_out(self, cluster: Cluster) -> None:
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

    def test_members_that_never_ask_for_their_assignment_are_left_out(self, cluster: Cluster) -> None:
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

    def test_a_leader_that_joins_again_means_a_rebalance_and_a_follower_does_not(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        assert follower.join().generation_id == 1
        assert state_of(cluster) == "Stable"
        assert leader.join() is None
        assert follower.heartbeat() == 27

    def test_a_follower_with_other_metadata_means_a_rebalance(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        follower.protocols = {"range": subscription("orders", "more")}
        assert follower.join() is None
        assert leader.join().generation_id == 2

    def test_a_join_that_is_repeated_before_the_assignment(self, cluster: Cluster) -> None:
        """The first answer was lost: the same again, no rebalance."""
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

    def test_generations_and_protocols_are_checked(self, cluster: Cluster) -> None:
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

    def test_of_two_that_ask_for_their_assignment_the_later_one_has_it(self, cluster: Cluster) -> None:
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

    def test_between_join_and_assignment_nothing_is_committed(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        member.send_join()
        cluster.advance(DELAY_MS)
        member.taken()
        assert member.commit() == 27
        member.sync({member.id: b""})
        assert member.commit() == 0


class TestSessions:
    def test_a_silent_member_is_removed_after_its_session_exactly(self, cluster: Cluster) -> None:
        leader, silent = stable_group(cluster, 2)
        cluster.advance(SESSION_MS - 1)
        assert leader.heartbeat() == 0
        cluster.advance(1)
        assert leader.heartbeat() == 27
        assert silent.heartbeat() == 25
        assert leader.join().generation_id == 2
        assert any("its session timed out" in line for line in cluster.lines)

    def test_heartbeats_and_commits_keep_it(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        for action in (member.heartbeat, member.commit) * 3:
            cluster.advance(SESSION_MS - 1)
            assert action() == 0
        cluster.advance(SESSION_MS)
        assert member.heartbeat() == 25
        assert state_of(cluster) == "Empty"

    def test_who_waits_for_an_answer_is_not_silent(self, cluster: Cluster) -> None:
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

    def test_an_id_that_nobody_comes_back_with_is_forgotten(self, cluster: Cluster) -> None:
        client, member = cluster.client(), ClassicMember(cluster)
        member.id = client.ask(member.request()).member_id
        cluster.advance(SESSION_MS)
        assert member.join().error_code == 25

    def test_a_newcomer_whose_connection_broke_is_forgotten_in_time(self, cluster: Cluster) -> None:
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
    def test_the_others_join_again(self, cluster: Cluster) -> None:
        leader, follower = stable_group(cluster, 2)
        assert leader.leave() == 0
        assert follower.heartbeat() == 27
        answer = follower.join()
        assert (answer.generation_id, answer.leader, len(answer.members)) == (2, follower.id, 1)

    def test_the_last_one_leaves_an_empty_group(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        assert member.leave() == 0
        assert state_of(cluster) == "Empty"
        assert member.leave() == 25

    def test_before_version_3_the_code_is_the_answers_own(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        request = LeaveGroupRequest(group_id=GROUP, member_id=member.id)
        assert [cluster.client().ask(request, 2).error_code for _ in range(2)] == [0, 25]

    def test_many_at_once(self, cluster: Cluster) -> None:
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

    def test_who_waits_is_told_when_it_is_sent_away(self, cluster: Cluster) -> None:
        waiting = ClassicMember(cluster, "i-1")
        waiting.send_join()
        members = [MemberIdentity(member_id="", group_instance_id="i-1")]
        assert cluster.client().ask(LeaveGroupRequest(group_id=GROUP, members=members)).members[0].error_code == 0
        assert waiting.taken().error_code == 25

    @pytest.mark.parametrize(("group", "code"), [("", 24), ("none", 0)])
    def test_of_no_group(self, cluster: Cluster, group: str, code: int) -> None:
        answer = cluster.client().ask(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m")]))
        assert answer.error_code == code
        assert [member.error_code for member in answer.members] == ([25] if code == 0 else [])


class TestRestart:
    @pytest.mark.parametrize("kill", [True, False])
    def test_members_go_on_with_their_generation(self, cluster: Cluster, kill: bool) -> None:
        members = stable_group(cluster, 2)
        cluster.restart(kill=kill)
        for member in members:
            member.client = cluster.client()
        assert [member.heartbeat() for member in members] == [0, 0]
        assert members[1].sync().assignment == b"1"
        assert members[0].commit() == 0
        assert members[1].join().generation_id == 1, "same metadata: no rebalance"

    def test_silent_ones_have_a_session_more(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 2)
        cluster.advance(SESSION_MS - 1)
        cluster.restart()
        cluster.advance(SESSION_MS - 1)
        assert state_of(cluster) == "Stable"
        cluster.advance(1)
        assert state_of(cluster) == "Empty"
        members[0].client = cluster.client()
        assert members[0].heartbeat() == 25

    def test_a_replaced_static_member(self, cluster: Cluster) -> None:
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

    def test_an_empty_group_keeps_its_generation(self, cluster: Cluster) -> None:
        (member,) = stable_group(cluster, 1)
        member.leave()
        cluster.restart()
        assert state_of(cluster) == "Empty"
        again = ClassicMember(cluster)
        again.send_join()
        cluster.advance(DELAY_MS)
        assert again.taken().generation_id == 3

    def test_the_journal_stays_small(self, cluster: Cluster) -> None:
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
    def test_assignments_that_cannot_be_written_are_not_told(self, cluster: Cluster) -> None:
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


def test_offsets_of_a_group_with_members_are_not_for_outsiders(cluster: Cluster) -> None:
    stable_group(cluster, 1)
    assert commit(cluster.client()) == 25
    assert commit(cluster.client(), group="nobody's") == 0
    assert commit(cluster.client(), group="none", generation=1) == 69
    assert commit(cluster.client(), group="none", generation=1, version=8) == 22
