"""The wall clock is set while the broker runs: waits keep their length, and stored data has the time of the wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.broker.batches import batch_of
from tests.broker.core.clock_steps import HOUR_MS, STEPS, cluster_with, log_of
from tests.broker.core.fetch_requests import fetch
from tests.broker.core.groups.members import REBALANCE_MS, SESSION_MS, ClassicMember, ConsumerMember, assign, stable_group
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster, produce_request

SHORT_LIVED = {"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "1"}

IsOver = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """`begin` starts a wait of `length_ms` and returns a check whether it is over."""

    length_ms: int
    begin: Callable[[Cluster], IsOver]
    nodes: int = 1
    config: dict[str, str] = field(default_factory=dict)


def long_poll(cluster: Cluster) -> IsOver:
    client = cluster.client()
    client.send(fetch(0, wait_ms=20_000))
    return lambda: bool(client.answers)


def delayed_response(cluster: Cluster) -> IsOver:
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


def growing_transaction(cluster: Cluster) -> IsOver:
    """It takes in another partition after a third of its time."""
    writer = Writer(cluster.client(), "t")
    writer.write(b"a")
    cluster.topic("other")
    cluster.advance(20_000)
    writer.sequence = 0
    writer.write(b"b", topic="other")
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
    "delay of a fault": Wait(length_ms=20_000, begin=delayed_response),
    "lag of a replica": Wait(length_ms=30_000, begin=replica_that_lags, nodes=3),
    "produce with acks=all": Wait(length_ms=9_000, begin=replication, nodes=3),
    "classic session": Wait(length_ms=SESSION_MS, begin=classic_session),
    "consumer session": Wait(length_ms=45_000, begin=consumer_session),
    "rebalance": Wait(length_ms=REBALANCE_MS, begin=rebalance),
    "first rebalance": Wait(length_ms=3_000, begin=first_rebalance, config={"group.initial.rebalance.delay.ms": "3000"}),
    "transaction": Wait(length_ms=60_000, begin=open_transaction),
    "growing transaction": Wait(length_ms=40_000, begin=growing_transaction),
    "transactional id": Wait(length_ms=120_000, begin=transactional_id, config={"transactional.id.expiration.ms": "120000"}),
    "idle producer": Wait(length_ms=5_000, begin=idle_producer, config=SHORT_LIVED),
}


@pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_clock_step_does_not_change_a_running_wait(wait: Wait, step_ms: int) -> None:
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
def test_clock_step_does_not_change_a_later_wait(wait: Wait, step_ms: int) -> None:
    cluster = cluster_with(wait.config, wait.nodes)
    cluster.set_wall_clock(step_ms)
    is_over = wait.begin(cluster)
    cluster.advance(wait.length_ms - 1)
    assert not is_over()
    cluster.advance(2)
    assert is_over()


def test_only_large_clock_steps_are_logged() -> None:
    cluster = cluster_with({"log.message.timestamp.type": "LogAppendTime"})
    client = cluster.client()
    for _ in range(6):
        cluster.set_wall_clock(-300)
        assert client.produce("orders", batch_of(b"a")).log_append_time_ms == cluster.wall_ms
    (line,) = [line for line in cluster.lines if "wall clock" in line]
    assert "back by 1200 ms" in line


class TestRestart:
    """Steady time restarts with the time of the wall clock; stored times are those of the wall clock."""

    @pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
    def test_transaction_timeout_continues_after_a_restart(self, step_ms: int) -> None:
        cluster = cluster_with()
        cluster.set_wall_clock(step_ms)
        is_over = open_transaction(cluster)
        cluster.advance(20_000)
        cluster.restart()
        cluster.advance(39_999)
        assert not is_over()
        cluster.advance(1)
        assert is_over()

    def test_transaction_timeout_after_a_restart_is_never_longer(self) -> None:
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
    @pytest.mark.parametrize("was_used", [False, True])
    def test_transactional_id_expiry_continues_after_a_restart(self, was_used: bool, step_ms: int) -> None:
        cluster = cluster_with({"transactional.id.expiration.ms": "120000"})
        cluster.set_wall_clock(step_ms)
        writer = Writer(cluster.client(), "t")
        if was_used:
            writer.write(b"a")
            writer.end(True)
        cluster.advance(100_000)
        cluster.restart()
        cluster.advance(19_999)
        assert cluster.core.state.transactions.describe("t") is not None
        cluster.advance(1)
        assert cluster.core.state.transactions.describe("t") is None

    @pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS)
    def test_producer_expiry_continues_after_a_restart(self, step_ms: int) -> None:
        cluster = cluster_with(SHORT_LIVED)
        cluster.set_wall_clock(step_ms)
        idle_producer(cluster)
        cluster.advance(2_000)
        cluster.restart(kill=False)
        cluster.advance(2_998)
        assert len(log_of(cluster).producers) == 1
        cluster.advance(3)
        assert len(log_of(cluster).producers) == 0
