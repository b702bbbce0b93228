"""Fetch sessions (KIP-227): their state, their answers, and which session is evicted."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core.fetch import sessions
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition, FetchTopic
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets, partitions_of
from tests.broker.core_client import Client, Cluster

SLOTS = "max.incremental.fetch.session.cache.slots"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 4)
    return cluster


def opened(client: Client, *partitions: int, topic: str = "orders") -> int:
    """The id of a new session."""
    session_id: int = client.ask(fetch(topic=topic, partitions=partitions or (0, 1), session=(0, 0))).session_id
    return session_id


class TestNews:
    def test_full_fetch_returns_all_and_opens_a_session(self, cluster: Cluster) -> None:
        answer = cluster.client().ask(fetch(partitions=(0, 1), session=(0, 0)))
        assert (answer.error_code, partitions_of(answer)) == (0, [0, 1])
        assert answer.session_id > 0

    def test_fetch_with_final_epoch_opens_no_session(self, cluster: Cluster) -> None:
        assert cluster.client().ask(fetch(session=(0, -1))).session_id == 0
        assert len(cluster.core.state.fetch_sessions) == 0

    def test_only_changed_partitions_are_returned(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client)
        assert partitions_of(client.ask(fetch(partitions=(), session=(session_id, 1)))) == []
        client.produce("orders", batch_of(b"a"), partition=1)
        answer = client.ask(fetch(partitions=(), session=(session_id, 2)))
        assert (partitions_of(answer), offsets(first(answer)), answer.session_id) == ([1], [0], session_id)

    def test_moved_high_watermark_is_returned_once(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client, 0)
        client.produce("orders", batch_of(b"a"))
        assert partitions_of(client.ask(fetch(1, session=(session_id, 1)))) == [0], "the high watermark is new"
        assert partitions_of(client.ask(fetch(partitions=(), session=(session_id, 2)))) == []

    def test_records_are_returned_until_the_position_moves(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client, 0)
        client.produce("orders", batch_of(b"a"))
        for epoch in (1, 2):
            assert offsets(first(client.ask(fetch(partitions=(), session=(session_id, epoch))))) == [0]

    def test_errors_and_their_end_are_returned(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client, 0, topic="later")
        for epoch in (1, 2):
            assert first(client.ask(fetch(partitions=(), session=(session_id, epoch)))).error_code == 3
        cluster.topic("later")
        assert first(client.ask(fetch(partitions=(), session=(session_id, 3)))).error_code == 0
        assert partitions_of(client.ask(fetch(partitions=(), session=(session_id, 4)))) == []

    def test_partitions_are_added_and_forgotten(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client, 0, 1)
        assert partitions_of(client.ask(fetch(partitions=(2,), forget=(1, 3), session=(session_id, 1)))) == [2]
        for partition in range(4):
            client.produce("orders", batch_of(b"a"), partition=partition)
        assert sorted(partitions_of(client.ask(fetch(partitions=(), session=(session_id, 2))))) == [0, 2]
        assert cluster.core.state.fetch_sessions.partition_count == 2

    def test_served_partition_moves_to_the_end(self, cluster: Cluster) -> None:
        """Each answer has room for one partition; in turn all are served."""
        client = cluster.client()
        session_id = opened(client, 0, 1, 2, 3)
        for partition in range(4):
            for _ in range(3):
                client.produce("orders", batch_of(b"a"), partition=partition)
        served = []
        for epoch in range(1, 9):
            answer = client.ask(fetch(partitions=(), max_bytes=1, session=(session_id, epoch)))
            served += [data.partition_index for data in answer.responses[0].partitions if data.records]
        assert served == [0, 1, 2, 3, 0, 1, 2, 3]


class TestErrors:
    def test_unknown_session_is_refused(self, cluster: Cluster) -> None:
        answer = cluster.client().ask(fetch(session=(5, 1)))
        assert (answer.error_code, answer.session_id, answer.responses) == (70, 0, [])
        assert cluster.client().ask(fetch(session=(0, 1))).error_code == 70

    @pytest.mark.parametrize("epoch", [2, 5, -2])
    def test_wrong_epoch_is_refused(self, cluster: Cluster, epoch: int) -> None:
        client = cluster.client()
        session_id = opened(client)
        assert client.ask(fetch(session=(session_id, epoch))).error_code == 71
        assert client.ask(fetch(session=(session_id, 1))).error_code == 0, "the session goes on"
        assert client.ask(fetch(session=(session_id, 1))).error_code == 71, "an epoch is used once"

    def test_session_with_names_refuses_ids(self, cluster: Cluster) -> None:
        client = cluster.client()
        topic_id = cluster.topic_named("orders").topic_id
        by_name, by_id = opened(client), client.ask(fetch(topic_id=topic_id, session=(0, 0)), 13).session_id
        assert client.ask(fetch(topic_id=topic_id, session=(by_name, 1)), 13).error_code == 106
        assert client.ask(fetch(session=(by_id, 1)), 12).error_code == 106

    def test_session_used_by_another_fails_the_waiting_fetch(self, cluster: Cluster) -> None:
        client, thief = cluster.client(), cluster.client()
        session_id = opened(client)
        client.send(fetch(partitions=(), session=(session_id, 1), wait_ms=500))
        assert thief.ask(fetch(partitions=(), session=(session_id, 2))).error_code == 0
        cluster.advance(500)
        assert client.answers.pop().error_code == 71

    @pytest.mark.parametrize("epoch", [0, -1])
    def test_full_fetch_replaces_the_old_session(self, cluster: Cluster, epoch: int) -> None:
        client = cluster.client()
        session_id = opened(client)
        answer = client.ask(fetch(session=(session_id, epoch)))
        assert (answer.error_code, answer.session_id > 0) == (0, epoch == 0)
        assert client.ask(fetch(session=(session_id, 1))).error_code == 70

    def test_a_session_without_partitions_ends(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client, 0)
        answer = client.ask(fetch(partitions=(), forget=(0,), session=(session_id, 1)))
        assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
        assert len(cluster.core.state.fetch_sessions) == 0

    def test_partition_count_follows_added_and_forgotten_partitions(self, cluster: Cluster) -> None:
        client, kept = cluster.client(), cluster.core.state.fetch_sessions
        ended, emptied, counts = opened(client, 0, 1, 2), opened(client, 0, 1), [kept.partition_count]
        client.ask(fetch(partitions=(3,), forget=(0, 1), session=(ended, 1)))
        counts.append(kept.partition_count)
        client.ask(fetch(session=(ended, -1)))
        counts.append(kept.partition_count)
        client.ask(fetch(partitions=(), forget=(0, 1), session=(emptied, 1)))
        assert [*counts, kept.partition_count] == [5, 4, 2, 0]

    def test_epoch_wraps_to_one(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = opened(client)
        cluster.core.state.fetch_sessions._sessions[session_id].epoch = sessions.EPOCH_MAX
        assert client.ask(fetch(session=(session_id, sessions.EPOCH_MAX))).error_code == 0
        assert client.ask(fetch(session=(session_id, 1))).error_code == 0


class TestIds:
    def test_recreated_topic_is_an_inconsistent_id(self, cluster: Cluster) -> None:
        client = cluster.client()
        old = cluster.topic_named("orders").topic_id
        session_id = client.ask(fetch(topic_id=old, session=(0, 0)), 13).session_id
        client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
        assert first(client.ask(fetch(partitions=(), session=(session_id, 1)), 13)).error_code == 3
        client.ask(CreateTopicsRequest(topics=[CreatableTopic(name="orders", num_partitions=1, replication_factor=1)]))
        answer = client.ask(fetch(partitions=(), session=(session_id, 2)), 13)
        assert (first(answer).error_code, answer.responses[0].topic_id) == (103, old)
        assert first(answer).aborted_transactions is None

    def test_unknown_topic_id_may_become_known(self, cluster: Cluster) -> None:
        client = cluster.client()
        session_id = client.ask(fetch(topic_id=UUID(int=9), session=(0, 0)), 13).session_id
        topic = cluster.topic_named("orders")
        cluster.core.topics._by_id[UUID(int=9)] = topic
        topic.topic_id = UUID(int=9)
        assert first(client.ask(fetch(partitions=(), session=(session_id, 1)), 13)).error_code == 0


class TestCapacity:
    @pytest.mark.parametrize(("slots", "count"), [(0, 0), (1, 1), (2, 2), (3, 3)])
    def test_number_of_sessions_is_limited(self, slots: int, count: int) -> None:
        cluster = Cluster({SLOTS: slots})
        cluster.topic("orders", 2)
        client = cluster.client()
        assert sum(opened(client) > 0 for _ in range(3)) == count

    def test_unused_session_is_evicted(self) -> None:
        cluster = Cluster({SLOTS: 1})
        cluster.topic("orders", 2)
        client = cluster.client()
        old = opened(client)
        cluster.advance(sessions.SAFE_MS)
        assert opened(client) == 0
        cluster.advance(1)
        assert opened(client, 0) > 0
        assert client.ask(fetch(session=(old, 1))).error_code == 70

    @pytest.mark.parametrize(("partitions", "gets_one"), [((0, 1), False), ((0, 1, 2), True)])
    def test_larger_session_evicts_a_smaller_one_that_is_not_new(self, partitions: tuple[int, ...], gets_one: bool) -> None:
        cluster = Cluster({SLOTS: 1})
        cluster.topic("orders", 3)
        client = cluster.client()
        small = opened(client, 0, 1)
        cluster.advance(1000)
        client.ask(fetch(partitions=(), session=(small, 1)))
        assert opened(client, *partitions) == 0, "new ones are safe"
        cluster.advance(sessions.SAFE_MS)
        client.ask(fetch(partitions=(), session=(small, 2)))
        assert (opened(client, *partitions) > 0) == gets_one
        assert client.ask(fetch(partitions=(), session=(small, 3))).error_code == (70 if gets_one else 0)

    def test_partitions_of_all_sessions_are_limited(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sessions, "PARTITIONS_MAX", 3)
        client = cluster.client()
        kept = opened(client, 0, 1)
        assert opened(client, 0, 1) == 0
        answer = client.ask(fetch(partitions=(2, 3), session=(kept, 1)))
        assert (answer.error_code, len(cluster.core.state.fetch_sessions)) == (70, 0)

    @pytest.mark.parametrize(("after_ms", "is_evicted"), [(sessions.SAFE_MS + 1, True), (sessions.SAFE_MS, False)])
    def test_partitions_of_unused_sessions_are_evicted(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, after_ms: int, is_evicted: bool
    ) -> None:
        """A consumer that is started again and again leaves all its sessions behind: they must not fill the room for good."""
        monkeypatch.setattr(sessions, "PARTITIONS_MAX", 5)
        used, unused = cluster.client(), [cluster.client() for _ in range(3)]
        kept = opened(used, 0, 1)
        left = [opened(client, 0) for client in unused]
        cluster.advance(after_ms)
        used.ask(fetch(partitions=(), session=(kept, 1)))
        assert bool(opened(cluster.client(), 0, 1)) == is_evicted
        kept_sessions = cluster.core.state.fetch_sessions
        assert kept_sessions.partition_count == 5
        assert [session_id in kept_sessions._sessions for session_id in left] == [not is_evicted, not is_evicted, True]
        assert used.ask(fetch(partitions=(), session=(kept, 2))).error_code == 0

    @pytest.mark.parametrize(("after_ms", "code"), [(sessions.SAFE_MS + 1, 0), (sessions.SAFE_MS, 70)])
    def test_growing_session_evicts_unused_sessions(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, after_ms: int, code: int
    ) -> None:
        monkeypatch.setattr(sessions, "PARTITIONS_MAX", 3)
        grows = cluster.client()
        session_id = opened(grows, 0)
        opened(cluster.client(), 0, 1)
        cluster.advance(after_ms)
        assert grows.ask(fetch(partitions=(1,), session=(session_id, 1))).error_code == code
        assert cluster.core.state.fetch_sessions.partition_count == 2

    def test_session_with_illegal_topic_names_is_not_kept(self, cluster: Cluster) -> None:
        client = cluster.client()
        long = "x" * 250
        answer = client.ask(fetch(topic=long, session=(0, 0)))
        assert (answer.session_id, first(answer).error_code) == (0, 3)
        assert client.ask(fetch(topic=long, session=(opened(client), 1))).error_code == 70

    def test_session_ids_are_unique(self, cluster: Cluster) -> None:
        client = cluster.client()
        cluster.core.state.fetch_sessions._rng = random.Random(7)
        before = opened(client)
        cluster.core.state.fetch_sessions._rng = random.Random(7)
        assert opened(client) != before


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, 3)),
        st.tuples(st.just("fetch"), st.sets(st.integers(0, 3))),
        st.tuples(st.just("forget"), st.sets(st.integers(0, 3))),
    ),
    max_size=30,
)


@given(steps=STEPS, max_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_reader_in_a_session_gets_all_records_in_order(steps: list[tuple[str, object]], max_bytes: int) -> None:
    """Whatever is added and forgotten on the way, a client that follows the protocol reads each partition without gaps."""
    cluster = Cluster()
    cluster.topic("orders", 4)
    client = cluster.client()
    reader = Reader(client, max_bytes)
    written = [0] * 4
    for step, argument in steps:
        if step == "produce":
            assert isinstance(argument, int)
            client.produce("orders", batch_of(b"a", b"b"), partition=argument)
            written[argument] += 2
        elif step == "fetch":
            assert isinstance(argument, set)
            reader.fetch(indices=reader.indices | argument)
        elif step == "forget":
            assert isinstance(argument, set)
            reader.fetch(indices=reader.indices - argument)
    for _ in range(100):
        reader.fetch(indices={0, 1, 2, 3})
    assert reader.positions == written


class Reader:
    """A client that keeps a session and says only what changed."""

    def __init__(self, client: Client, max_bytes: int) -> None:
        self.client = client
        self.max_bytes = max_bytes
        self.session = (0, 0)
        self.positions = [0] * 4
        self.indices: set[int] = set()
        self.sent_positions: dict[int, int] = {}

    def fetch(self, indices: set[int]) -> None:
        request = fetch(partitions=(), forget=tuple(self.indices - indices), max_bytes=self.max_bytes, session=self.session)
        new = [index for index in sorted(indices) if self.sent_positions.get(index) != self.positions[index]]
        requested = [FetchPartition(partition=index, fetch_offset=self.positions[index], partition_max_bytes=1 << 20) for index in new]
        request.topics = [FetchTopic(topic="orders", partitions=requested)] if requested else []
        self.indices = indices
        self.sent_positions = {index: self.positions[index] for index in indices}
        answer = self.client.ask(request)
        assert answer.error_code == 0
        self.session = (answer.session_id, self.session[1] + 1) if answer.session_id else (0, 0)
        if not answer.session_id:
            self.indices, self.sent_positions = set(), {}
        for data in answer.responses[0].partitions if answer.responses else ():
            found = offsets(data)
            assert found[:1] in ([], [self.positions[data.partition_index]])
            self.positions[data.partition_index] += 2 * len(found)
