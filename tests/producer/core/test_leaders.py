"""Several brokers: leader changes and hints, recreated topics, throttling, and unreachable brokers."""

from __future__ import annotations

from uuid import UUID

import pytest

from chaffinch.client.addresses import Address
from chaffinch.errors import Stored, codes
from chaffinch.producer.core import events
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.produce import ProduceRequest
from tests.client.scripted_server import metadata
from tests.producer.core.rig import LOST, OK, ORDERS_0, ORDERS_1, PORT, Answer, Rig

MOVED = codes.NOT_LEADER_OR_FOLLOWER
GAP = Answer(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)


def metadata_request_count(rig: Rig) -> int:
    return sum(isinstance(request, MetadataRequest) for request in rig.requests)


def open_request_nodes(rig: Rig) -> list[int]:
    """Node ids that the open requests were sent to."""
    return [request.address.port - PORT + 1 for request in rig.open]


class TestLeaders:
    def test_each_partition_is_sent_to_its_leader(self) -> None:
        rig = Rig(nodes=2)
        rig.send("a", ORDERS_0)
        rig.send("b", ORDERS_1)
        assert open_request_nodes(rig) == [1, 2]

    def test_moved_coordinator_is_looked_up_without_wait(self) -> None:
        rig = Rig(nodes=2, options={"retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000})
        rig.sleep(15_000)  # Since the last metadata request.
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED))
        assert open_request_nodes(rig) == []
        rig.move_leader(0, 2)
        rig.release()
        assert open_request_nodes(rig) == [2]

    @pytest.mark.parametrize("code", [MOVED, codes.FENCED_LEADER_EPOCH])
    def test_leader_hint_is_followed_at_once(self, code: codes.ErrorCode) -> None:
        """KIP-951: without a backoff and without waiting for metadata."""
        rig = Rig(nodes=2, options={"retry.backoff.ms": 10_000})
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(code, leader=(2, 1)))
        assert open_request_nodes(rig) == [2]
        rig.answer(OK)
        assert rig.fate("ab") == ["0", "1"]
        assert rig.trace == ["ab@0/0", "ab@0/0"]

    def test_leader_hint_to_a_new_node_is_followed(self) -> None:
        rig = Rig(nodes=2, node_endpoints=(3,))
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=(3, 1)))
        assert open_request_nodes(rig) == [3]

    @pytest.mark.parametrize("leader", [(2, 0), (-1, 5), (7, 5)])
    def test_stale_or_invalid_leader_hint_is_ignored(self, leader: tuple[int, int]) -> None:
        rig = Rig(nodes=2)
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=leader))
        rig.sleep(50)
        assert open_request_nodes(rig) == []

    def test_leader_hints_that_alternate_are_ignored(self) -> None:
        rig = Rig(nodes=2)
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=(2, 1)))
        rig.answer(Answer(MOVED, leader=(1, 1)))
        assert open_request_nodes(rig) == []

    def test_batches_in_flight_follow_in_order(self) -> None:
        """Batches are in flight to the old leader, which responds to some; the new leader has the stored ones."""
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        for batch in ("a", "b", "c"):
            rig.send(batch)
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(base_offset=1))
        rig.answer(Answer(MOVED, leader=(2, 1)))
        assert open_request_nodes(rig) == [1], "b waits for the response to c, and is sent before it"
        rig.answer(Answer(MOVED, leader=(2, 1)))
        assert open_request_nodes(rig) == [2]
        rig.answer(Answer(base_offset=2))
        rig.answer(Answer(base_offset=3))
        assert rig.trace[1:] == ["a@1/0", "b@2/0", "c@3/0", "b@2/0", "c@3/0"]
        assert rig.fate("abc") == ["1", "2", "3"]

    def test_batch_appended_by_a_former_leader_is_possibly_stored(self) -> None:
        """Its response has the base offset (Kafka's DelayedProduce). Culprits that the next leader finds leave the innocents open."""
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, base_offset=1, leader=(2, 1)))
        rig.answer(Answer(codes.INVALID_RECORD, [0]))
        assert rig.trace == ["z@0/0", "ab@1/0", "ab@1/0"]
        assert [rig.error(value).stored for value in "ab"] == [Stored.POSSIBLY, Stored.POSSIBLY]

    def test_gap_at_the_new_leader_waits_for_the_old_leader(self) -> None:
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        rig.send("a")
        rig.move_leader(0, 2)
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        rig.send("b")
        assert open_request_nodes(rig) == [1, 2]
        rig.answer(GAP, request=1)
        rig.answer(LOST)
        rig.sleep(2_000)
        rig.answer(Answer(base_offset=1))
        rig.answer(Answer(base_offset=2))
        assert rig.trace[1:] == ["a@1/0", "b@2/0", "a@1/0", "b@2/0"]
        assert rig.fate("ab") == ["1", "2"]


class TestTopics:
    def test_recreated_topic_gets_one_batch_at_first(self) -> None:
        """Its broker has no producer state, and would accept the second batch before the first."""
        rig = Rig()
        rig.send("z")
        rig.answer(OK)
        answer = metadata({"orders": 2}, {1: PORT})
        answer.topics[0].topic_id = UUID(int=7)
        rig.scripted[MetadataRequest] = [answer]
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        rig.send("a")
        rig.send("b")
        assert rig.trace == ["z@0/0", "a@1/0"]

    def test_added_partitions_are_used(self) -> None:
        rig = Rig(options={"metadata.max.age.ms": 1_000})
        rig.send("a")
        rig.answer(OK)
        rig.partitions = 3
        rig.sleep(1_500)
        assert rig.core.context.cluster.partition_count("orders") == 3


class TestBrokers:
    def test_throttled_broker_gets_no_request(self) -> None:
        """KIP-219: the client waits; other brokers are not affected."""
        rig = Rig(nodes=2)
        rig.throttle_time_ms = 5_000
        rig.send("a", ORDERS_0)
        rig.answer(OK)
        rig.send("b", ORDERS_0)
        rig.send("c", ORDERS_1)
        assert open_request_nodes(rig) == [2]
        rig.sleep(4_999)
        assert open_request_nodes(rig) == [2]
        rig.sleep(1)
        assert open_request_nodes(rig) == [2, 1]

    def test_bootstrap_brokers_are_used_when_all_others_fail(self) -> None:
        rig = Rig(nodes=1)
        rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {5: PORT + 5}, leader_id=5)]
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        rig.send("a")
        assert rig.open[0].address == Address("127.0.0.1", PORT + 5)
        rig.answer(LOST)
        rig.core.context.attempts.failed(Address("127.0.0.1", PORT + 5), "gone", rig.steady_ms)
        rig.sleep(2_000)
        assert open_request_nodes(rig) == [1]

    def test_rebootstrap_required_is_followed(self) -> None:
        rig = Rig(nodes=2)
        rig.scripted[MetadataRequest] = [MetadataResponse(error_code=codes.REBOOTSTRAP_REQUIRED.number)]
        before = metadata_request_count(rig)
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        assert metadata_request_count(rig) == before + 2
        rig.send("a")
        assert open_request_nodes(rig) == [1]

    def test_backoff_grows_with_jitter(self) -> None:
        rig = Rig(options={"retry.backoff.ms": 100, "retry.backoff.max.ms": 1_600})
        rig.send("a")
        waits = []
        for _ in range(6):
            rig.answer(Answer(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
            began_ms = rig.steady_ms
            while not rig.open:
                rig.sleep(1)
            waits.append(rig.steady_ms - began_ms)
        for wait_ms, middle_ms in zip(waits, (100, 200, 400, 800, 1_600, 1_600), strict=True):
            assert 0.8 * middle_ms <= wait_ms <= 1.2 * middle_ms + 1
        assert len({wait_ms / middle_ms for wait_ms, middle_ms in zip(waits, (100, 200, 400, 800, 1_600, 1_600), strict=True)}) > 1
        assert isinstance(rig.open[0].message, ProduceRequest)
