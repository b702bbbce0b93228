"""The classic protocol on the wire: how many members a group takes, and how much memory all of them."""

from __future__ import annotations

from unittest import mock

import pytest

from chaffinch.broker.core.groups import classic_group
from tests.broker.core.groups.members import DELAY_MS, SESSION_MS, ClassicMember, commit, stable_group, state_of, subscription
from tests.broker.core_client import Cluster


class TestSize:
    def test_join_of_a_full_group_is_refused(self) -> None:
        cluster = Cluster({"group.max.size": "2"})
        stable_group(cluster, 2)
        answer = ClassicMember(cluster).join()
        assert (answer.error_code, answer.member_id) == (81, "")

    def test_lowered_limit_refuses_the_last_member_to_rejoin(self) -> None:
        """The last to join is refused, and the others do not wait for it."""
        cluster = Cluster({"group.max.size": "3"})
        members = stable_group(cluster, 3)
        cluster.config["group.max.size"] = "2"
        cluster.restart()
        for member in members:
            member.client = cluster.client()
            member.protocols = {"range": subscription("orders", "others")}
        assert [member.join() for member in members[:2]] == [None, None]
        assert members[2].join().error_code == 81
        assert [member.taken().generation_id for member in members[:2]] == [2, 2]
        assert members[2].heartbeat() == 25

    @pytest.mark.parametrize("is_synced", [True, False])
    def test_refused_member_does_not_disturb_the_group(self, is_synced: bool) -> None:
        cluster = Cluster({"group.max.size": "1"})
        late, member = ClassicMember(cluster), ClassicMember(cluster)
        late.id = late.client.ask(late.request()).member_id
        assert member.join() is None
        cluster.advance(DELAY_MS)
        assert member.taken().error_code == 0
        if is_synced:
            assert member.sync({member.id: b"all"}).error_code == 0
        assert late.join().error_code == 81
        assert state_of(cluster) == ("Stable" if is_synced else "CompletingRebalance")

    def test_unused_member_id_takes_no_place(self) -> None:
        cluster = Cluster({"group.max.size": "1"})
        client = cluster.client()
        assert client.ask(ClassicMember(cluster).request()).error_code == 79
        member = ClassicMember(cluster)
        assert member.join() is None
        assert client.ask(ClassicMember(cluster).request()).error_code == 81
        cluster.advance(DELAY_MS)
        assert member.taken().error_code == 0

    def test_memory_of_all_members_is_bounded(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = cluster.core.state.groups._context.memory
        monkeypatch.setattr(memory, "_bytes_max", 10_000)
        stable_group(cluster, 2, range=b"x" * 3000)
        assert ClassicMember(cluster, range=b"x" * 3000).join().error_code == 81
        assert ClassicMember(cluster, group="other", range=b"x" * 3000).join().error_code == 81
        assert ClassicMember(cluster, group="other", range=b"x" * 100).join() is None

    def test_cost_of_a_join_is_independent_of_the_group_size(self, cluster: Cluster) -> None:
        members = stable_group(cluster, 50)
        late = ClassicMember(cluster)
        with mock.patch.object(classic_group.ClassicMember, "size_bytes", new_callable=mock.PropertyMock, return_value=1) as size_bytes:
            late.send_join()
            for member in members[:20]:
                member.send_join()
        assert size_bytes.call_count <= 2 * 21

    def test_groups_without_members_take_no_memory(self, cluster: Cluster) -> None:
        member = ClassicMember(cluster)
        for number in range(3):
            member.group, member.id = f"refused-{number}", ""
            member.protocol_type = ""
            assert member.client.ask(member.request()).error_code == 23
        assert not list(cluster.core.state.groups)
        member.group, member.protocol_type = "pending", "consumer"
        assert member.client.ask(member.request()).error_code == 79
        assert len(list(cluster.core.state.groups)) == 1
        cluster.advance(SESSION_MS)
        assert not list(cluster.core.state.groups)
        assert cluster.core.state.groups._context.memory._total == 0

    def test_number_of_requested_groups_is_limited_by_memory(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each costs the broker something, its name above all, before there is a member."""
        monkeypatch.setattr(cluster.core.state.groups._context.memory, "_bytes_max", 50_000)
        member = ClassicMember(cluster)
        codes = []
        for number in range(3):
            member.group = f"{number}" + "g" * 20_000
            codes.append(member.client.ask(member.request()).error_code)
        assert codes == [79, 79, 81]

    def test_group_with_offsets_stays_without_members(self, cluster: Cluster) -> None:
        commit(cluster.client())
        assert ClassicMember(cluster).client.ask(ClassicMember(cluster).request()).error_code == 79
        cluster.advance(SESSION_MS)
        assert state_of(cluster) == "Empty"
