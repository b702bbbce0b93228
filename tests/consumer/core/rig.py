"""Test rig: a consumer core, a manual clock and manual responses. `waiting` holds the requests without a response."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected, RequestFailed, ResponseReceived
from chaffinch.client.effects import CompleteCall, Disconnect, FailCall, Report, SendRequest
from chaffinch.consumer.core.consumer_core import ConsumerCore, TimePassed
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.group_protocol import MemberSubscription, encode_assignment, encode_subscription
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.options import parse_options
from chaffinch.consumer.core.positions import Position
from chaffinch.consumer.records import ConsumerRecord, records_of_all
from chaffinch.errors import KafkaException, RecordDeserializationException, codes
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chaffinch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from chaffinch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from chaffinch.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from chaffinch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from chaffinch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns

TOPIC_ID = UUID(int=7)
MEMBER_ID = "me"
WALL_MS = 1_700_000_000_000

T = TypeVar("T")


class Rig:
    """See the module. Topic `t` has three partitions, led by node 0 in epoch `epoch`."""

    def __init__(self, **options: Any) -> None:
        named = {"bootstrap.servers": "b:1", "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self.core = ConsumerCore(parse_options({**named, **options}), random.Random(7))
        self.steady_ms = 1_000
        self.waiting: list[SendRequest] = []
        self.done: list[CompleteCall | FailCall] = []
        self.reports: list[str] = []
        self.epoch = 0
        self.partitions = 3
        self.topic_id = TOPIC_ID
        self.callbacks: list[tuple[str, int]] = []

    # Time and what the caller does.

    @property
    def group(self) -> Group:
        assert self.core.group is not None
        return self.core.group

    @property
    def state(self) -> State:
        return self.group.membership.state

    def position(self, tp: TopicPartition) -> Position:
        """What is fetched next."""
        found = self.core.subscriptions.of(tp).position
        assert found is not None
        return found

    def consumed(self, tp: TopicPartition) -> Position:
        """What the caller gets next."""
        found = self.core.subscriptions.of(tp).consumed
        assert found is not None
        return found

    @property
    def errors(self) -> list[KafkaException]:
        """Of the calls that are done, all of which failed."""
        failed = [done for done in self.done if isinstance(done, FailCall)]
        assert failed == self.done
        return [done.error for done in failed]

    def step(self, *events: Any) -> None:
        for effect in self.core.handle_all(events or (TimePassed(),), self.steady_ms):
            if isinstance(effect, SendRequest):
                self.waiting.append(effect)
            elif isinstance(effect, CompleteCall | FailCall):
                self.done.append(effect)
            elif isinstance(effect, Report):
                self.reports.append(effect.text)
            elif isinstance(effect, Disconnect):
                self.disconnect(effect.address, effect.reason)

    def advance(self, by_ms: int) -> None:
        """Let time pass, stopping wherever the core wants to look."""
        until_ms = self.steady_ms + by_ms
        while (deadline_ms := self.core.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.steady_ms = max(deadline_ms, self.steady_ms)
            self.step()
        self.steady_ms = until_ms
        self.step()

    def poll(self, records_max: int = 500) -> list[Any]:
        """One look of the caller's poll; callbacks are noted as (kind, number of partitions)."""
        self.core.poll_started(self.steady_ms, WALL_MS + self.steady_ms)
        try:
            while (callback := self.core.next_callback(self.steady_ms)) is not None:
                self.callbacks.append((callback.kind, len(callback.partitions)))
                self.core.callback_done(callback)
            self.core.raise_error()
            portions = self.core.take(records_max)
        finally:
            self.core.poll_ended(self.steady_ms)
        self.step()
        return [(portion.tp.partition, portion.columns.value(row)) for portion in portions for row in range(len(portion.columns))]

    # Answers.

    def pending(self, kind: type) -> list[SendRequest]:
        return [sent for sent in self.waiting if isinstance(sent.message, kind)]

    def take(self, kind: type[T]) -> SendRequest:
        """The request of this kind that waits; exactly one must."""
        found = self.pending(kind)
        assert len(found) == 1, f"{len(found)} of {kind.__name__} wait, besides {[type(sent.message).__name__ for sent in self.waiting]}"
        self.waiting.remove(found[0])
        return found[0]

    def answer(self, sent: SendRequest | type, message: Any) -> None:
        request = sent if isinstance(sent, SendRequest) else self.take(sent)
        self.step(ResponseReceived(address=request.address, token=request.token, message=message))

    def fail(self, kind: type, *, is_unsupported: bool = False) -> None:
        """The connection breaks."""
        sent = self.take(kind)
        reason = "closed by the broker"
        lost = [] if is_unsupported else [Disconnected(address=sent.address, reason=reason)]
        self.step(RequestFailed(address=sent.address, token=sent.token, reason=reason, was_sent=True, is_unsupported=is_unsupported), *lost)

    def metadata(self, code: int = 0) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(partition_index=index, leader_id=0, leader_epoch=self.epoch, replica_nodes=[0], isr_nodes=[0])
            for index in range(self.partitions)
        ]
        topic = MetadataResponseTopic(name="t", topic_id=self.topic_id, error_code=code, partitions=[] if code else partitions)
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=0, host="b", port=1)], topics=[topic])

    def answer_metadata(self, code: int = 0) -> None:
        self.answer(MetadataRequest, self.metadata(code))

    def find_coordinator(self, code: int = 0) -> None:
        found = Coordinator(key="g", node_id=0, host="b", port=1, error_code=code)
        self.answer(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[found]))

    def answer_join(
        self,
        *,
        generation: int = 1,
        is_leader: bool = True,
        code: int = 0,
        topics: tuple[str, ...] = ("t",),
        others: Mapping[str, Iterable[int]] = MappingProxyType({}),
        has_returned: bool = False,
    ) -> None:
        """`others`: the other members, with the partitions of each. `has_returned`: the present assignment remains (KIP-814)."""
        owned = {MEMBER_ID: (), **{name: tuple(TopicPartition("t", number) for number in numbers) for name, numbers in others.items()}}
        subscriptions = {
            name: encode_subscription(MemberSubscription(topics=topics, owned=has, generation=0)) for name, has in owned.items()
        }
        members = (
            [JoinGroupResponseMember(member_id=name, metadata=metadata) for name, metadata in subscriptions.items()] if is_leader else []
        )
        answer = JoinGroupResponse(
            error_code=code,
            generation_id=generation,
            protocol_name=self.group.membership.assignors[0].name,
            leader=MEMBER_ID if is_leader else "other",
            member_id=MEMBER_ID,
            members=members,
            skip_assignment=has_returned,
        )
        self.answer(JoinGroupRequest, answer)

    def answer_sync(self, *numbers: int, code: int = 0) -> None:
        assignment = encode_assignment(TopicPartition("t", number) for number in numbers)
        self.answer(SyncGroupRequest, SyncGroupResponse(error_code=code, assignment=assignment))

    def answer_offsets(self, offsets: dict[int, int], epoch: int = -1) -> None:
        """The response to OffsetFetch; -1 for nothing."""
        partitions = [
            OffsetFetchResponsePartitions(partition_index=number, committed_offset=offset, committed_leader_epoch=epoch, metadata="")
            for number, offset in offsets.items()
        ]
        topics = [OffsetFetchResponseTopics(name="t", partitions=partitions)]
        self.answer(OffsetFetchRequest, OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)]))

    def answer_list(self, offsets: dict[int, int], code: int = 0) -> None:
        partitions = [
            ListOffsetsPartitionResponse(partition_index=number, offset=offset, error_code=code) for number, offset in offsets.items()
        ]
        self.answer(ListOffsetsRequest, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)]))

    def answer_fetch(self, session: int = 0, error: int = 0, **parts: Any) -> None:
        """`p0=data` and so on: bytes of records, a code, or a PartitionData."""
        partitions = []
        for name, data in parts.items():
            number = int(name[1:])
            if isinstance(data, PartitionData):
                partitions.append(data.replace(partition_index=number))
            elif isinstance(data, int):
                partitions.append(PartitionData(partition_index=number, error_code=data, high_watermark=-1))
            else:
                partitions.append(
                    PartitionData(partition_index=number, high_watermark=100, last_stable_offset=100, records=memoryview(data))
                )
        topics = [FetchableTopicResponse(topic_id=self.topic_id, partitions=partitions)]
        self.answer(FetchRequest, FetchResponse(session_id=session, error_code=error, responses=topics))

    def disconnect(self, address: Address, reason: str) -> None:
        """The connection ends, and all that waits on it fails."""
        lost = [sent for sent in self.waiting if sent.address == address]
        self.waiting = [sent for sent in self.waiting if sent.address != address]
        failed = [RequestFailed(address=address, token=sent.token, reason=reason, was_sent=True) for sent in lost]
        self.step(*failed, Disconnected(address=address, reason=reason, had_response=True))

    # Ways to a state.

    def subscribe(self) -> None:
        self.core.subscribe(["t"])
        self.step()
        self.answer_metadata()
        self.find_coordinator()

    def reach(self, state: State, **join: Any) -> Self:
        """Go on from nothing until the member is there."""
        steps: list[tuple[State, Callable[[], object]]] = [
            (State.OUT, lambda: None),
            (State.UNJOINED, self.subscribe),
            (State.JOINING, self.poll),
            (State.SYNCING, lambda: self.answer_join(**join)),
            (State.ADOPTING, lambda: self.answer_sync(0, 1)),
            (State.STABLE, self.poll),
        ]
        for reached, do in steps:
            do()
            assert self.state is reached
            if reached is state:
                return self
        raise AssertionError(state)

    def assign(self, *numbers: int, position: int = 0) -> Rig:
        """Partitions by hand, with positions: ready to be fetched."""
        tps = [TopicPartition("t", number) for number in numbers]
        self.core.assign(tps, self.steady_ms)
        self.step()
        self.answer_metadata()
        if self.core.group is not None:
            self.find_coordinator()
            self.answer_offsets(dict.fromkeys(numbers, position))
        else:
            self.answer_list(dict.fromkeys(numbers, position))
        return self


def as_records(portions: list[Portion]) -> list[ConsumerRecord]:
    """With keys and values as bytes."""

    def refuse(tp: TopicPartition, offset: int, error: RecordDeserializationException) -> None:
        raise error

    return records_of_all(portions, None, None, refuse)


def number_of(name: str) -> int:
    """Of an error, as brokers send it."""
    return codes.by_name(name).number


def records(offset: int, *values: bytes, epoch: int = 0) -> bytearray:
    """One batch."""
    out = batches.encode(RecordColumns.from_lists(None, list(values), [0] * len(values)))
    batches.patch_offset(out, 0, offset, epoch)
    return out
