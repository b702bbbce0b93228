"""Somebody sets the wall clock while the broker runs: what waits, waits as long as before; what is stored has the time that is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from chaffinch.broker.core.groups.classic_group import ClassicGroup
from chaffinch.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from chaffinch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from chaffinch.protocol.messages.list_transactions import ListTransactionsRequest
from chaffinch.records.batch_header import read_header
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch
from tests.broker.core.groups.members import REBALANCE_MS, SESSION_MS, ClassicMember, ConsumerMember, assign, commit, stable_group
from tests.broker.core.transactional_writer import Writer
from tests.broker.core_client import Cluster, produce_request

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
STEPS = {"an hour forward": HOUR_MS, "an hour back": -HOUR_MS, "a second back": -SECOND_MS, "50 days forward": 50 * DAY_MS}
SHORT_LIVED = {"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "1"}

IsOver = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """`begin` makes somebody wait for `length_ms` and returns whether that is over."""

    length_ms: int
    begin: Callable[[Cluster], IsOver]
    nodes: int = 1
    config: dict[str, str] = field(default_factory=dict)


def log_of(cluster: Cluster) -> PartitionLog:
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    return partition.log


def long_poll(cluster: Cluster) -> IsOver:
    client = cluster.client()
    client.send(fetch(0, wait_ms=20_000))
    return lambda: bool(client.answers)


def late_answer(cluster: Cluster) -> IsOver:
    cluster.core.faults.add(action="delay", delay_ms=20_000)
    client = cluster.client()
    client.send(produce_request("orders", batch_of(b"a")))
    return lambda: bool(client.answers)


def replica_that_lags(cluster: Cluster) -> IsOver:
    cluster.topic("payments", 1, 3)
    partition = cluster.core.topics.partition("payments", 0)
    assert partition is not None
    cluster.stop_node(2, abruptly=True)
    assert 2 in partition.replicas.in_sync
    return lambda: 2 not in partition.replicas.in_sync


def replication(cluster: Cluster) -> IsOver:
    """A producer waits for a replica that does not come back."""
    cluster.topic("payments", 1, 3)
    partition = cluster.core.topics.partition("payments", 0)
    assert partition is not None
    leader, follower, _ = partition.replicas.assigned
    cluster.stop_node(follower, abruptly=True)
    client = cluster.client(node=leader)
    client.send(produce_request("payments", batch_of(b"a")).replace(timeout_ms=9_000))
    return lambda: bool(client.answers)


def classic_session(cluster: Cluster) -> IsOver:
    stable_group(cluster, 1)
    group = cluster.core.state.groups.find("g")
    assert group is not None
    return lambda: group.is_empty


def consumer_session(cluster: Cluster) -> IsOver:
    ConsumerMember(cluster, "one").join()
    group = cluster.core.state.groups.find("g")
    assert group is not None
    return lambda: group.is_empty


def rebalance(cluster: Cluster) -> IsOver:
    """Of two members one joins again; the other neither does that nor goes."""
    members = [ClassicMember(cluster), ClassicMember(cluster)]
    for member in members:
        member.session_ms = 10 * REBALANCE_MS
        member.send_join()
    cluster.advance(2 * cluster.core.state.settings["group.initial.rebalance.delay.ms"])
    for member in members:
        assert member.taken().error_code == 0
    assign(members)
    assert members[0].join() is None
    return lambda: members[0].taken() is not None


def first_rebalance(cluster: Cluster) -> IsOver:
    member = ClassicMember(cluster)
    member.send_join()
    return lambda: member.taken() is not None


def open_transaction(cluster: Cluster) -> IsOver:
    Writer(cluster.client(), "t").write(b"a")
    return lambda: not log_of(cluster).ongoing_transactions()


def transactional_id(cluster: Cluster) -> IsOver:
    Writer(cluster.client(), "t")
    return lambda: cluster.core.state.transactions.describe("t") is None


def idle_producer(cluster: Cluster) -> IsOver:
    writer = Writer(cluster.client(), "t")
    writer.write(b"a")
    writer.end(True)
    return lambda: not len(log_of(cluster).producers)


WAITS = {
    "long poll": Wait(length_ms=20_000, begin=long_poll),
    "delay of a fault": Wait(length_ms=20_000, begin=late_answer),
    "lag of a replica": Wait(length_ms=30_000, begin=replica_that_lags, nodes=3),
    "produce with acks=all": Wait(length_ms=9_000, begin=replication, nodes=3),
    "classic session": Wait(length_ms=SESSION_MS, begin=classic_session),
    "consumer session": Wait(length_ms=45_000, begin=consumer_session),
    "rebalance": Wait(length_ms=REBALANCE_MS, begin=rebalance),
    "first rebalance": Wait(length_ms=3_000, begin=first_rebalance, config={"group.initial.rebalance.delay.ms": "3000"}),
    "transaction": Wait(length_ms=60_000, begin=open_transaction),
    "transactional id": Wait(length_ms=120_000, begin=transactional_id, config={"transactional.id.expiration.ms": "120000"}),
    "idle producer": Wait(length_ms=5_000, begin=idle_producer, config=SHORT_LIVED),
}


def cluster_with(config: dict[str, str] | None = None, nodes: int = 1) -> Cluster:
    cluster = Cluster(config, nodes=nodes)
    cluster.topic("orders")
    return cluster


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_no_wait_is_shorter_or_longer(wait: Wait, step_ms: int) -> None:
    cluster = cluster_with(wait.config, wait.nodes)
    is_over = wait.begin(cluster)
    cluster.advance(wait.length_ms // 2)
    cluster.set_wall_clock(step_ms)
    cluster.advance(wait.length_ms - wait.length_ms // 2 - 1)
    assert not is_over()
    cluster.advance(2)
    assert is_over()


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_nor_one_that_begins_afterwards(wait: Wait, step_ms: int) -> None:
    cluster = cluster_with(wait.config, wait.nodes)
    cluster.set_wall_clock(step_ms)
    is_over = wait.begin(cluster)
    cluster.advance(wait.length_ms - 1)
    assert not is_over()
    cluster.advance(2)
    assert is_over()


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
class TestStored:
    """The step comes while the broker runs, and a minute later something is stored."""

    def after(self, step_ms: int, **config: str) -> Cluster:
        cluster = cluster_with(config)
        cluster.advance(MINUTE_MS)
        cluster.set_wall_clock(step_ms)
        cluster.advance(MINUTE_MS)
        assert cluster.wall_ms == cluster.now_ms + step_ms
        return cluster

    def test_log_append_time(self, step_ms: int) -> None:
        cluster = self.after(step_ms, **{"log.message.timestamp.type": "LogAppendTime"})
        assert cluster.client().produce("orders", batch_of(b"a")).log_append_time_ms == cluster.wall_ms
        assert log_of(cluster).max_timestamp() == cluster.wall_ms

    def test_which_timestamps_are_taken(self, step_ms: int) -> None:
        limits = {"log.message.timestamp.after.max.ms": "2000", "log.message.timestamp.before.max.ms": "500"}
        cluster = self.after(step_ms, **limits)
        client = cluster.client()
        sent = [client.produce("orders", batch_of(b"a", timestamps=[cluster.wall_ms + ahead_ms])) for ahead_ms in (-501, -500, 2000, 2001)]
        assert [answer.error_code for answer in sent] == [32, 0, 0, 32]

    def test_transactions(self, step_ms: int) -> None:
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

    def test_offsets(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        commit(cluster.client(), 5, version=4, retention_ms=7000)
        (offset,) = cluster.core.state.offsets.fetch_all("g").values()
        assert (offset.committed_ms, offset.expires_ms) == (cluster.wall_ms, cluster.wall_ms + 7000)

    def test_since_when_a_group_is_empty(self, step_ms: int) -> None:
        cluster = self.after(step_ms)
        (member,) = stable_group(cluster, 1)
        member.commit(5)
        group = cluster.core.state.groups.find("g")
        assert isinstance(group, ClassicGroup)
        assert group.state_since_ms == cluster.wall_ms
        cluster.advance(1000)
        member.leave()
        assert (group.is_empty, group.state_since_ms) == (True, cluster.wall_ms)

    def test_how_old_records_without_timestamps_are(self, step_ms: int) -> None:
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
    def test_of_records(self, step_ms: int, is_too_old: bool) -> None:
        """Looked at within `log.retention.check.interval.ms`, though by the clock of before that is due in weeks."""
        cluster = cluster_with({"log.retention.ms": str(30 * DAY_MS)})
        cluster.client().produce("orders", batch_of(b"a", timestamps=[cluster.now_ms]))
        cluster.advance(HOUR_MS)
        cluster.set_wall_clock(step_ms)
        cluster.advance(5 * MINUTE_MS)
        assert log_of(cluster).log_start_offset == is_too_old
        cluster.advance(30 * DAY_MS - step_ms)
        assert log_of(cluster).log_start_offset == 1

    def test_of_offsets(self, step_ms: int, is_too_old: bool) -> None:
        cluster = cluster_with({"offsets.retention.minutes": str(30 * 24 * 60)})
        commit(cluster.client(), 5)
        cluster.set_wall_clock(step_ms)
        cluster.advance(10 * MINUTE_MS)
        assert cluster.core.state.offsets.has_some("g") is not is_too_old

    def test_of_what_compaction_waits_for(self, step_ms: int, is_too_old: bool) -> None:
        cluster = Cluster()
        options = {"cleanup_policy": "compact", "min_compaction_lag_ms": str(30 * DAY_MS), "min_cleanable_dirty_ratio": "0"}
        cluster.topic("orders", segment_ms="1", **options)
        for age_ms in (4, 2, 0):
            cluster.client().produce("orders", batch_of(b"a", timestamps=[cluster.now_ms - age_ms]))
        cluster.advance(HOUR_MS)
        assert len(log_of(cluster).files.segments) == 3
        cluster.set_wall_clock(step_ms)
        cluster.advance(MINUTE_MS)
        assert (log_of(cluster).files.state.first_dirty_offset == 2) == is_too_old


class TestRestart:
    """Steady time begins anew with what the wall clock shows; what was written down is the wall clock's."""

    @pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
    def test_the_rest_of_a_transaction(self, step_ms: int) -> None:
        cluster = cluster_with()
        cluster.set_wall_clock(step_ms)
        is_over = open_transaction(cluster)
        cluster.advance(20_000)
        cluster.restart()
        cluster.advance(39_999)
        assert not is_over()
        cluster.advance(1)
        assert is_over()

    def test_never_longer_than_its_timeout(self) -> None:
        """The clock is set back while the broker runs: what was written down lies ahead at the next start."""
        cluster = cluster_with()
        open_transaction(cluster)
        cluster.set_wall_clock(-HOUR_MS)
        cluster.restart()
        cluster.advance(59_999)
        assert log_of(cluster).ongoing_transactions()
        cluster.advance(1)
        assert not log_of(cluster).ongoing_transactions()

    @pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
    def test_an_idle_producer(self, step_ms: int) -> None:
        cluster = cluster_with(SHORT_LIVED)
        cluster.set_wall_clock(step_ms)
        idle_producer(cluster)
        cluster.advance(2_000)
        cluster.restart(kill=False)
        cluster.advance(2_998)
        assert len(log_of(cluster).producers) == 1
        cluster.advance(3)
        assert len(log_of(cluster).producers) == 0


def test_small_corrections_are_followed_in_silence_and_steps_are_told() -> None:
    cluster = cluster_with({"log.message.timestamp.type": "LogAppendTime"})
    client = cluster.client()
    for _ in range(4):
        cluster.set_wall_clock(-300)
        assert client.produce("orders", batch_of(b"a")).log_append_time_ms == cluster.wall_ms
    (line,) = [line for line in cluster.lines if "wall clock" in line]
    assert "back by 1200 ms" in line
