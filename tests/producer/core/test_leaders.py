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


def asked(rig: Rig) -> int:
    return sum(isinstance(request, MetadataRequest) for request in rig.requests)


def ports(rig: Rig) -> list[int]:
    """Where the open requests went."""
    return [request.address.port - PORT + 1 for request in rig.open]


class TestLeaders:
    def test_each_partition_has_its_own(self) -> None:
        rig = Rig(nodes=2)
        rig.send("a", ORDERS_0)
        rig.send("b", ORDERS_1)
        assert ports(rig) == [1, 2]

    def test_moved_coordinator_is_looked_up_without_wait(self) -> None:
        rig = Rig(nodes=2, options={"retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000})
        rig.sleep(15_000)  # Since metadata was last asked for.
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED))
        assert ports(rig) == []
        rig.lead(0, 2)
        rig.release()
        assert ports(rig) == [2]

    @pytest.mark.parametrize("code", [MOVED, codes.FENCED_LEADER_EPOCH])
    def test_a_hint_is_followed_at_once(self, code: codes.ErrorCode) -> None:
        """KIP-951: no time passes, and no metadata is waited for."""
        rig = Rig(nodes=2, options={"retry.backoff.ms": 10_000})
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(code, leader=(2, 1)))
        assert ports(rig) == [2]
        rig.answer(OK)
        assert rig.fate("ab") == ["0", "1"]
        assert rig.trace == ["ab@0/0", "ab@0/0"]

    def test_also_to_a_node_that_is_new(self) -> None:
        rig = Rig(nodes=2, told_nodes=(3,))
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=(3, 1)))
        assert ports(rig) == [3]

    @pytest.mark.parametrize("leader", [(2, 0), (-1, 5), (7, 5)])
    def test_a_hint_that_is_old_or_says_nothing_is_not(self, leader: tuple[int, int]) -> None:
        rig = Rig(nodes=2)
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=leader))
        rig.sleep(50)
        assert ports(rig) == []

    def test_two_that_name_each_other_are_not_believed_for_ever(self) -> None:
        rig = Rig(nodes=2)
        rig.send("a")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, leader=(2, 1)))
        rig.answer(Answer(MOVED, leader=(1, 1)))
        assert ports(rig) == []

    def test_batches_in_flight_follow_in_order(self) -> None:
        """Five are under way at the old leader, which answers some of them; the new one knows what was stored."""
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        for batch in ("a", "b", "c"):
            rig.send(batch)
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(base_offset=1))
        rig.answer(Answer(MOVED, leader=(2, 1)))
        assert ports(rig) == [1], "b waits until c has its answer: it goes first"
        rig.answer(Answer(MOVED, leader=(2, 1)))
        assert ports(rig) == [2]
        rig.answer(Answer(base_offset=2))
        rig.answer(Answer(base_offset=3))
        assert rig.trace[1:] == ["a@1/0", "b@2/0", "c@3/0", "b@2/0", "c@3/0"]
        assert rig.fate("abc") == ["1", "2", "3"]

    def test_one_that_wrote_the_batch_and_lost_the_partition_may_have_stored_it(self) -> None:
        """Its answer says where: as Kafka's DelayedProduce leaves it. Culprits found by the next leader leave the innocents' fate open."""
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        rig.send("ab")
        rig.hold.add(MetadataRequest)
        rig.answer(Answer(MOVED, base_offset=1, leader=(2, 1)))
        rig.answer(Answer(codes.INVALID_RECORD, [0]))
        assert rig.trace == ["z@0/0", "ab@1/0", "ab@1/0"]
        assert [rig.error(value).stored for value in "ab"] == [Stored.POSSIBLY, Stored.POSSIBLY]

    def test_a_new_leader_may_find_a_gap_before_the_old_one_has_answered(self) -> None:
        rig = Rig(nodes=2)
        rig.send("z")
        rig.answer(OK)
        rig.send("a")
        rig.lead(0, 2)
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        rig.send("b")
        assert ports(rig) == [1, 2]
        rig.answer(GAP, request=1)
        rig.answer(LOST)
        rig.sleep(2_000)
        rig.answer(Answer(base_offset=1))
        rig.answer(Answer(base_offset=2))
        assert rig.trace[1:] == ["a@1/0", "b@2/0", "a@1/0", "b@2/0"]
        assert rig.fate("ab") == ["1", "2"]


class TestTopics:
    def test_one_made_anew_gets_one_batch_at_first(self) -> None:
        """Its broker knows no producer, and would take the second batch before the first."""
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

    def test_partitions_added_are_used(self) -> None:
        rig = Rig(options={"metadata.max.age.ms": 1_000})
        rig.send("a")
        rig.answer(OK)
        rig.partitions = 3
        rig.sleep(1_500)
        assert rig.core.wiring.cluster.partition_count("orders") == 3


class TestBrokers:
    def test_one_that_asks_for_a_rest_gets_it(self) -> None:
        """KIP-219: the client waits; others are not concerned."""
        rig = Rig(nodes=2)
        rig.throttle_time_ms = 5_000
        rig.send("a", ORDERS_0)
        rig.answer(OK)
        rig.send("b", ORDERS_0)
        rig.send("c", ORDERS_1)
        assert ports(rig) == [2]
        rig.sleep(4_999)
        assert ports(rig) == [2]
        rig.sleep(1)
        assert ports(rig) == [2, 1]

    def test_when_all_are_gone_the_first_ones_are_asked_again(self) -> None:
        rig = Rig(nodes=1)
        rig.scripted[MetadataRequest] = [metadata({"orders": 2}, {5: PORT + 5}, leader_id=5)]
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        rig.send("a")
        assert rig.open[0].address == Address("127.0.0.1", PORT + 5)
        rig.answer(LOST)
        rig.core.wiring.attempts.failed(Address("127.0.0.1", PORT + 5), "gone", rig.steady_ms)
        rig.sleep(2_000)
        assert ports(rig) == [1]

    def test_one_that_says_so_is_obeyed(self) -> None:
        rig = Rig(nodes=2)
        rig.scripted[MetadataRequest] = [MetadataResponse(error_code=codes.REBOOTSTRAP_REQUIRED.number)]
        before = asked(rig)
        rig.step(events.TopicRequested(topic="orders", is_stale=True))
        rig.sleep(2_000)
        assert asked(rig) == before + 2
        rig.send("a")
        assert ports(rig) == [1]

    def test_waits_between_attempts_grow_and_are_not_all_alike(self) -> None:
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
