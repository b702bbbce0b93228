"""The wall clock was set while the broker ran: stored data has the time of the wall clock, and its age follows from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.broker.core.groups.classic_states import ClassicState
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest
from chaffinch.records.batch import encode
from chaffinch.records.batch_header import ATTRIBUTE_DELETE_HORIZON, read_header
from chaffinch.records.columns import RecordColumns
from tests.broker.batches import batch_of
from tests.broker.core.clock_steps import DAY_MS, HOUR_MS, MINUTE_MS, STEPS, cluster_with, log_of
from tests.broker.core.groups.members import ClassicMember, commit, stable_group
from tests.broker.core.transactions.coordinator_world import T0, World
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster
from tests.support.raw_messages import message


def ask_for_member_id(cluster: Cluster) -> None:
    member = ClassicMember(cluster)
    member.client.send(member.request())


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
class TestStored:
    """The step comes while the broker runs, and a minute later something is stored."""

    def after(self, step_ms: int, **config: str) -> Cluster:
        cluster = cluster_with(config)
        cluster.advance(MINUTE_MS)
        cluster.set_wall_clock(step_ms)
        cluster.advance(MINUTE_MS)
        assert cluster.wall_ms == cluster.steady_ms + step_ms
        return cluster

    def test_log_append_time_follows_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms, **{"log.message.timestamp.type": "LogAppendTime"})
        assert cluster.client().produce("orders", batch_of(b"a")).log_append_time_ms == cluster.wall_ms
        assert log_of(cluster).max_timestamp() == cluster.wall_ms

    def test_timestamp_limits_follow_the_wall_clock(self, step_ms: int) -> None:
        limits = {"log.message.timestamp.after.max.ms": "2000", "log.message.timestamp.before.max.ms": "500"}
        cluster = self.after(step_ms, **limits)
        client = cluster.client()
        sent = [client.produce("orders", batch_of(b"a", timestamps=[cluster.wall_ms + ahead_ms])) for ahead_ms in (-501, -500, 2000, 2001)]
        assert [answer.error_code for answer in sent] == [32, 0, 0, 32]

    def test_times_of_transactions_follow_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        client = cluster.client()
        writer = Writer(client, "t")
        writer.write(b"a")
        begun_ms = cluster.wall_ms
        cluster.advance(5000)
        (shown,) = client.ask(DescribeTransactionsRequest(transactional_ids=["t"])).transaction_states
        assert shown.transaction_start_time_ms == begun_ms
        for longer_than_ms, count in ((4999, 1), (5000, 0)):
            listed = client.ask(ListTransactionsRequest(duration_filter=longer_than_ms)).transaction_states
            assert len(listed) == count
        writer.end(True)
        topics = [DescribeProducersTopicRequest(name="orders", partition_indexes=[0])]
        (row,) = client.ask(DescribeProducersRequest(topics=topics)).topics[0].partitions[0].active_producers
        assert row.last_timestamp == cluster.wall_ms
        (marker,) = log_of(cluster).read(1, 1)
        assert read_header(marker).max_timestamp == cluster.wall_ms

    def test_commit_times_follow_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        commit(cluster.client(), 5, version=4, retention_ms=7000)
        (offset,) = cluster.core.state.offsets.fetch_all("g").values()
        assert (offset.committed_ms, offset.expires_ms) == (cluster.wall_ms, cluster.wall_ms + 7000)

    def test_empty_since_follows_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        (member,) = stable_group(cluster, 1)
        member.commit(5)
        group = cluster.core.state.groups.find("g")
        assert isinstance(group, ClassicGroup)
        assert group.state_since_ms == cluster.wall_ms
        cluster.advance(1000)
        member.leave()
        assert (group.is_empty, group.state_since_ms) == (True, cluster.wall_ms)

    @pytest.mark.parametrize("begin", [ask_for_member_id, lambda cluster: commit(cluster.client())])
    def test_creation_of_a_group_follows_the_wall_clock(self, begin: Callable[[Cluster], object], step_ms: int) -> None:
        cluster = self.after(step_ms)
        begin(cluster)
        group = cluster.core.state.groups.find("g")
        assert isinstance(group, ClassicGroup)
        assert group.state_since_ms == cluster.wall_ms

    def test_start_of_a_rebalance_follows_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        stable_group(cluster, 1)
        cluster.advance(1000)
        ClassicMember(cluster).send_join()
        group = cluster.core.state.groups.find("g")
        assert isinstance(group, ClassicGroup)
        assert (group.state, group.state_since_ms) == (ClassicState.PREPARING_REBALANCE, cluster.wall_ms)

    def test_log_append_time_of_old_formats_follows_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms, **{"log.message.timestamp.type": "LogAppendTime"})
        sent = message(timestamp=5)
        assert cluster.client().produce("orders", sent, version=2).log_append_time_ms == cluster.wall_ms

    def test_delete_horizon_follows_the_wall_clock(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        cluster.topic("compacted", cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0", delete_retention_ms="7000000")
        for ahead_ms in (0, 2, 4):
            columns = RecordColumns.from_lists([b"k%d" % ahead_ms], [None], [cluster.wall_ms + ahead_ms])
            cluster.client().produce("compacted", encode(columns))
        cluster.advance(20_000)
        log = log_of(cluster, "compacted")
        header = read_header(log.read(0, 1)[0])
        assert header.attributes & ATTRIBUTE_DELETE_HORIZON
        assert cluster.wall_ms - 15_000 <= header.base_timestamp - 7_000_000 <= cluster.wall_ms

    def test_age_of_a_segment_without_timestamps_is_steady(self, step_ms: int) -> None:
        cluster = self.after(step_ms, **{"log.roll.ms": "100000"})
        for wait_ms, segments in ((100_000, 1), (1, 1), (0, 2)):
            cluster.client().produce("orders", batch_of(b"a", timestamps=[-1]))
            assert len(log_of(cluster).files.segments) == segments
            cluster.advance(wait_ms)

    def test_times_of_an_empty_abort_follow_the_wall_clock(self, step_ms: int) -> None:
        world = World(version=2)
        world.wall.offset_ms = step_ms
        world.end(world.init(), False)
        metadata = world.coordinator.describe("t")
        assert metadata is not None
        assert (metadata.started_ms, metadata.updated_ms) == (T0 + step_ms, T0 + step_ms)

    def test_age_of_records_without_timestamps_is_steady(self, step_ms: int) -> None:
        cluster = self.after(step_ms, **{"log.retention.ms": "1000000", "log.retention.check.interval.ms": "1000"})
        cluster.client().produce("orders", batch_of(b"a", timestamps=[-1]))
        cluster.advance(1_000_000)
        assert log_of(cluster).log_start_offset == 0
        cluster.advance(2_000)
        assert log_of(cluster).log_start_offset == 1


# By the wall clock, as Apache Kafka has it: (by how much the clock goes forward, whether what is 30 days old now goes within a check).
AGES = [(HOUR_MS, False), (-HOUR_MS, False), (50 * DAY_MS, True)]


@pytest.mark.parametrize(("step_ms", "is_too_old"), AGES)
class TestAge:
    def test_retention_follows_the_wall_clock(self, step_ms: int, is_too_old: bool) -> None:
        """Looked at within `log.retention.check.interval.ms`, though by the clock of before that is due in weeks."""
        cluster = cluster_with({"log.retention.ms": str(30 * DAY_MS)})
        cluster.client().produce("orders", batch_of(b"a", timestamps=[cluster.steady_ms]))
        cluster.advance(HOUR_MS)
        cluster.set_wall_clock(step_ms)
        cluster.advance(5 * MINUTE_MS)
        assert log_of(cluster).log_start_offset == is_too_old
        cluster.advance(30 * DAY_MS - step_ms)
        assert log_of(cluster).log_start_offset == 1

    def test_offset_expiry_follows_the_wall_clock(self, step_ms: int, is_too_old: bool) -> None:
        cluster = cluster_with({"offsets.retention.minutes": str(30 * 24 * 60)})
        commit(cluster.client(), 5)
        cluster.set_wall_clock(step_ms)
        cluster.advance(10 * MINUTE_MS)
        assert cluster.core.state.offsets.has_offsets("g") is not is_too_old

    def test_compaction_lag_follows_the_wall_clock(self, step_ms: int, is_too_old: bool) -> None:
        cluster = Cluster()
        options: dict[str, Any] = {"cleanup_policy": "compact", "min_compaction_lag_ms": str(30 * DAY_MS), "min_cleanable_dirty_ratio": "0"}
        cluster.topic("orders", segment_ms="1", **options)
        for age_ms in (4, 2, 0):
            cluster.client().produce("orders", batch_of(b"a", timestamps=[cluster.steady_ms - age_ms]))
        cluster.advance(HOUR_MS)
        assert len(log_of(cluster).files.segments) == 3
        cluster.set_wall_clock(step_ms)
        cluster.advance(MINUTE_MS)
        assert (log_of(cluster).files.state.first_dirty_offset == 2) == is_too_old
        cluster.advance(max(30 * DAY_MS - step_ms - HOUR_MS, 0))
        assert log_of(cluster).files.state.first_dirty_offset == 2
