"""While the journal of groups cannot be written: clients that come again at once are held back, and the log says why, then counts."""

from __future__ import annotations

from chaffinch.errors import codes
from tests.broker.core.groups.members import DELAY_MS, ClassicMember, ConsumerMember, commit, full_disk, stable_group, state_of
from tests.broker.core_client import Cluster

NOT_COORDINATOR = codes.NOT_COORDINATOR.number
REASON = "cannot append offsets.journal: no space left"


def refusal_lines(cluster: Cluster) -> list[str]:
    return [line for line in cluster.lines if "SyncGroup" in line or "more since the last line" in line]


def test_rejoining_leader_is_answered_once_a_second(cluster: Cluster) -> None:
    """As librdkafka does: no pause between a SyncGroup that was refused and the next JoinGroup."""
    member = ClassicMember(cluster)
    member.send_join()
    cluster.advance(2 * DELAY_MS)
    member.taken()
    rounds, end_ms = 0, cluster.steady_ms + 9_000
    with full_disk(cluster):
        while cluster.steady_ms < end_ms:
            assert member.sync({member.id: b"a"}) is None, "the answer waits"
            cluster.advance(1000)
            assert member.taken().error_code == NOT_COORDINATOR
            assert member.join().error_code == 0
            rounds += 1
    assert rounds == 9
    assert refusal_lines(cluster)[0] == f"refused: SyncGroup from client 'test' for group 'g': NOT_COORDINATOR: {REASON}"
    assert len(refusal_lines(cluster)) <= 4, refusal_lines(cluster)
    assert member.sync({member.id: b"a"}).assignment == b"a", "as soon as there is room again"


def test_followers_wait_for_the_leader(cluster: Cluster) -> None:
    """They get the error at once, and then wait for the generation without the leader."""
    leader, follower = (ClassicMember(cluster) for _ in range(2))
    for member in (leader, follower):
        member.send_join()
    cluster.advance(2 * DELAY_MS)
    assert (leader.taken().error_code, follower.taken().error_code) == (0, 0)
    follower.send_sync()
    with full_disk(cluster):
        leader.send_sync()
        assert follower.taken().error_code == NOT_COORDINATOR
        assert follower.join() is None
        cluster.advance(1000)
        assert leader.taken().error_code == NOT_COORDINATOR
    leader.send_join()
    assert (leader.taken().generation_id, follower.taken().generation_id) == (2, 2)


def test_static_member_replacement_that_cannot_be_written_is_refused(cluster: Cluster) -> None:
    member = ClassicMember(cluster, "instance")
    member.send_join()
    cluster.advance(2 * DELAY_MS)
    member.taken()
    assert member.sync({member.id: b"a"}).assignment == b"a"
    again = ClassicMember(cluster, "instance")
    with full_disk(cluster):
        assert again.join() is None
        cluster.advance(1000)
        assert again.taken().error_code == NOT_COORDINATOR
    assert cluster.lines == [f"refused: JoinGroup from client 'test' for group 'g': NOT_COORDINATOR: {REASON}"]
    assert state_of(cluster) == "Stable"
    assert again.join().error_code == 0


def test_refused_commit_is_logged_with_its_reason(cluster: Cluster) -> None:
    (member,) = stable_group(cluster, 1)
    with full_disk(cluster):
        for _ in range(100):
            assert member.commit() == NOT_COORDINATOR
            assert commit(member.client, group="others") == NOT_COORDINATOR
    first = "refused: OffsetCommit from client 'test' for group '{}': NOT_COORDINATOR: " + REASON
    assert cluster.lines == [first.format("g"), first.format("others")]
    assert member.commit() == 0


def test_refused_heartbeat_is_logged_with_its_reason(cluster: Cluster) -> None:
    member = ConsumerMember(cluster, "a")
    with full_disk(cluster):
        for _ in range(100):
            assert member.join().error_code == NOT_COORDINATOR
    assert cluster.lines == [f"refused: ConsumerGroupHeartbeat from client 'test' for group 'g': NOT_COORDINATOR: {REASON}"]
    assert member.join().error_code == 0
    assert member.owned
