"""The producer's core: events and the time go in, effects come out. No clock, socket, thread or dice of its own.

It ties the parts together: `accumulator` fills, `delivery` sends and settles batches, `transaction` says what may be sent. Records are
appended by `append` and `append_batch` (the hot path), everything else is an event. One lock around all calls is its owner's business.
After each event the same round is made, in `_advance`: expire what is too old, ask for metadata, an identity or the transaction's next
step, send what is ready, settle who waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Dice
from chaffinch.client.connections import Answered, Connected, Disconnected, Failed, Written
from chaffinch.errors import (
    BufferExhaustedException,
    KafkaException,
    NetworkException,
    Stored,
    TimeoutException,
    UnknownTopicOrPartitionException,
    codes,
    exception_for,
)
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from chaffinch.producer.core.accumulator import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Accumulator, Appended, Headers, OpenBatch
from chaffinch.producer.core.batches import ProducerBatch, Receipts
from chaffinch.producer.core.delivery import Delivery
from chaffinch.producer.core.effects import CompleteCall, Effect, FailCall, SendRequest, WakeCallers
from chaffinch.producer.core.errors_again import again, as_abortable
from chaffinch.producer.core.exception_handler import Question
from chaffinch.producer.core.identity import IdentityKeeper
from chaffinch.producer.core.options import compression_level
from chaffinch.producer.core.partitioner import MURMUR2, Partitioner, Rule, partition_of_key
from chaffinch.producer.core.produce_requests import ProduceSent
from chaffinch.producer.core.tokens import (
    IDENTITY_ASKED,
    METADATA_ASKED,
    FactsAsked,
    IdentityAsked,
    MetadataAsked,
    StepAsked,
    network_error,
)
from chaffinch.producer.core.topic_facts import facts_request, read_facts
from chaffinch.producer.core.transaction import TransactionManager
from chaffinch.producer.core.transaction_moves import State
from chaffinch.producer.core.transaction_requests import Step
from chaffinch.producer.core.wiring import Wiring
from chaffinch.records.compression import from_name
from chaffinch.settings import Settings


@dataclass(slots=True)
class _Flush:
    """A caller that waits until everything before these positions has its outcome."""

    call: Any
    positions: dict[TopicPartition, int]


@dataclass(slots=True)
class _Close:
    call: Any
    deadline_ms: int


class ProducerCore:
    """One producer. `handle` takes an event and returns effects, to be carried out in order; `next_deadline_ms` is when to call it next."""

    def __init__(self, settings: Settings, dice: Dice, *, questions: frozenset[Question] = frozenset(), rule: Rule | str = MURMUR2) -> None:
        """`questions`: what its shell asks an exception handler when it gets AskHandler. `rule`: who chooses partitions."""
        self.wiring = Wiring(settings, dice, questions)
        self.accumulator = Accumulator(
            batch_bytes=settings["batch.size"],
            linger_ms=settings["linger.ms"],
            memory_bytes=settings["buffer.memory"],
            compression=from_name(settings["compression.type"]),
            level=compression_level(settings),
        )
        self.partitioner = Partitioner(
            dice,
            self._loads,
            batch_bytes=settings["batch.size"],
            rule=rule,
            ignores_keys=settings["partitioner.ignore.keys"],
            is_adaptive=settings["partitioner.adaptive.partitioning.enable"],
        )
        adaptive = settings["partitioner.adaptive.partitioning.enable"]
        self._availability_timeout_ms: int = settings["partitioner.availability.timeout.ms"] if adaptive else 0
        self._advanced_ms = 0
        self._wants_look = False
        transactional_id = self.wiring.transactional_id
        self.transaction = None if transactional_id is None else TransactionManager(transactional_id, self.wiring.transaction_timeout_ms)
        self.identity = IdentityKeeper(self.wiring, self.transaction)
        self.delivery = Delivery(self.wiring, self.accumulator, self.identity, self.transaction)
        self.next_deadline_ms: int | None = None
        self._places: dict[str, list[TopicPartition]] = {}
        """Partitions of topics that are written to, as of `_places_version` of the cluster."""
        self._places_version = -1
        self._record_bytes_max: int = settings["max.request.size"] - BATCH_OVERHEAD_BYTES
        self._lanes: dict[str, OpenBatch] = {}
        """Per topic the batch that its records without a key join."""
        self.callers_waiting_for_memory = 0
        self._flushes: list[_Flush] = []
        self._close: _Close | None = None
        self._facts_under_way: set[str] = set()
        self._refused_login: tuple[KafkaException, int] | None = None

    def handle(self, event: events.Event, now_ms: int) -> list[Effect]:
        """Take in what has happened at `now_ms`, do whatever can be done now, and say what the shell is to do."""
        return self.handle_all((event,), now_ms)

    def handle_all(self, heard: Iterable[events.Event], now_ms: int) -> list[Effect]:
        """Several events of one moment, in order, and one round for all; without any it is as if TimePassed had been said."""
        for event in heard:
            self._take_in(event, now_ms)
        self._advance(now_ms)
        effects, self.delivery.out = self.delivery.out, []
        return effects

    @property
    def is_idle(self) -> bool:
        """Whether every record has its outcome."""
        return self.delivery.is_idle

    # What callers ask, on their own thread, with the lock held.

    def choose_partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, size: int) -> int:
        """The partition of a record that names none."""
        self._close_lane(topic)
        return self.partitioner.choose(topic, key, value, partition_count, size, self._begins_batch)

    def _begins_batch(self, topic: str, partition: int, size: int) -> bool:
        begins = self.accumulator.begins_batch(TopicPartition(topic, partition), size)
        self._wants_look |= begins
        return begins

    def append(
        self,
        topic_partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        receipt: Any,
        size: int,
        now_ms: int,
    ) -> bool:
        """Put a record into its batch; there must be memory for it. True when the core should be asked to look (TimePassed)."""
        appended = self.accumulator.append(topic_partition, key, value, timestamp_ms, headers, receipt, size, now_ms)
        if appended is Appended.JOINED and not self._wants_look:
            return False
        self._wants_look = False
        self.wiring.metadata.use(topic_partition.topic, now_ms)
        return True

    def join(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, receipt: Any) -> Receipts | None:
        """`append` for what is common: a record without partition and headers joins a batch that is growing already.

        The batch's receipts, this one the last of them; None when it must be done step by step: something is to be decided.
        """
        size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
        growing = self._lanes.get(topic) if key is None or not self.partitioner.hashes_keys else self._growing_of_key(topic, key)
        if growing is None or size > self._record_bytes_max:
            return None
        return self.accumulator.join(growing, key, value, timestamp_ms, receipt, size)

    def _growing_of_key(self, topic: str, key: bytes) -> OpenBatch | None:
        if self._places_version != self.wiring.cluster.version:
            self._places.clear()
            self._places_version = self.wiring.cluster.version
        places = self._places.get(topic)
        if places is None:
            places = [TopicPartition(topic, index) for index in range(self.wiring.cluster.partition_count(topic) or 0)]
            self._places[topic] = places
        return self.accumulator.growing(places[partition_of_key(key, len(places))]) if places else None

    def open_lane(self, topic_partition: TopicPartition) -> None:
        """The partitioner chose this partition: the next records of the topic join its batch, if they stick to it, while it grows."""
        growing = self.accumulator.growing(topic_partition)
        if growing is not None and self.partitioner.is_sticky:
            growing.counted = growing.size
            self._lanes[topic_partition.topic] = growing

    def _close_lane(self, topic: str) -> None:
        """The partitioner is to choose: tell it what has joined since it did."""
        growing = self._lanes.pop(topic, None)
        if growing is not None:
            self.partitioner.count(topic, growing.size - growing.counted)

    def _places_of(self, topic: str) -> list[TopicPartition]:
        places = [TopicPartition(topic, index) for index in range(self.wiring.cluster.partition_count(topic) or 0)]
        self._places[topic] = places
        return places

    def append_batch(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a ready-made batch behind what waits for its partition; there must be memory for it."""
        self.accumulator.append_batch(batch)
        self.wiring.metadata.use(batch.topic_partition.topic, now_ms)

    def records_refused(self, count: int, error: KafkaException) -> KafkaException:
        """Records failed before they were in any batch; their error, in words. In a transaction that counts like any other failure."""
        self.wiring.counts["records_failed"] += count
        if self.transaction is None:
            return error
        if error.code.is_retriable:
            error = as_abortable(error)
        if self.transaction.state is State.IN_TRANSACTION:
            self.delivery.out += self.transaction.record_failed(error)
        return error

    def no_memory(self, size: int, waited_ms: int) -> KafkaException:
        """The error of a caller that waited for memory too long."""
        text = f"{size} bytes do not fit: buffer.memory is {self.accumulator.memory_bytes}, {self.accumulator.memory_free} free"
        return BufferExhaustedException(f"{text}; waited for {waited_ms} ms", stored=Stored.NO, api="Produce")

    def topic_error(self, topic: str, heard_since_ms: int) -> KafkaException | None:
        """Why the topic cannot be used, if a broker said so at or after a time and it is no use to wait; or does not let us in at all."""
        if self._refused_login is not None and self._refused_login[1] >= heard_since_ms:
            return again(self._refused_login[0])
        state = self.wiring.cluster.topic(topic)
        if state is None or state.code is codes.NONE or state.code.is_retriable or state.heard_ms < heard_since_ms:
            return None
        return exception_for(state.code, topic_partition=TopicPartition(topic, -1), stored=Stored.NO, api="Metadata")

    def unknown_topic(self, topic: str, partition: int | None, heard_since_ms: int) -> UnknownTopicOrPartitionException | None:
        """The error of a topic, or a partition of it, that nobody knows, if brokers said so at or after a time."""
        state = self.wiring.cluster.topic(topic)
        if state is None or state.heard_ms < heard_since_ms:
            return None
        if state.code is codes.UNKNOWN_TOPIC_OR_PARTITION:
            what = f"no broker knows the topic {topic!r}"
        elif partition is not None and 0 < state.partition_count <= partition:
            what = f"topic {topic!r} has {state.partition_count} partitions, there is no partition {partition}"
        else:
            return None
        place = TopicPartition(topic, -1 if partition is None else partition)
        return UnknownTopicOrPartitionException(what, topic_partition=place, stored=Stored.NO, api="Metadata")

    @property
    def outstanding_count(self) -> int:
        """Records without an outcome."""
        count = 0
        for topic_partition in self.delivery.partitions():
            first = self.accumulator.first_position(topic_partition)
            count += 0 if first is None else self.accumulator.position_next(topic_partition) - first
            count += sum(batch.count for batch in self.delivery.queue(topic_partition).batches() if not batch.is_done)
        return count

    def reason_for_waiting(self) -> KafkaException | None:
        """Why nothing has gone on lately, as far as anybody knows."""
        return self.delivery.reason_for_waiting()

    def partitions_with_leader(self, topic: str) -> list[int]:
        """Partitions that can be written now: they have a leader, and it has taken what is ready for it (`availability.timeout.ms`)."""
        state = self.wiring.cluster.topic(topic)
        hanging = self._hanging_leaders()
        return [] if state is None else [i for i, p in sorted(state.partitions.items()) if p.leader_id >= 0 and p.leader_id not in hanging]

    def _hanging_leaders(self) -> set[int | None]:
        """Nodes for which something has been ready longer than `partitioner.availability.timeout.ms`."""
        timeout_ms = self._availability_timeout_ms
        if not timeout_ms:
            return set()
        ready = ((tp, self.accumulator.ready_at_ms(tp)) for tp in self.accumulator.partitions())
        late_ms = self._advanced_ms - timeout_ms
        return {self.wiring.cluster.leader_of(tp) for tp, ready_at_ms in ready if ready_at_ms is not None and ready_at_ms < late_ms}

    def _loads(self, topic: str) -> tuple[list[int], list[int]]:
        """Partitions that can be written now, and how many batches wait for each."""
        partitions = self.partitions_with_leader(topic)
        return partitions, [self.accumulator.waiting_count(TopicPartition(topic, partition)) for partition in partitions]

    def waited_in_vain(self, topic: str, partition: int | None, waited_ms: int) -> KafkaException:
        """The error of a caller that waited for a topic or partition too long."""
        metadata, count = self.wiring.metadata, self.wiring.cluster.partition_count(topic)
        if metadata.last_error is not None or self.wiring.cluster.updated_ms is None:
            what = self.wiring.attempts.describe(self.wiring.known_addresses, waited_ms)
            cause: KafkaException = metadata.last_error or NetworkException(what, stored=Stored.NO)
        elif count is not None and partition is not None:
            what = f"topic {topic!r} has {count} partitions, there is no partition {partition}; waited for {waited_ms} ms"
            cause = UnknownTopicOrPartitionException(topic_partition=TopicPartition(topic, partition), stored=Stored.NO)
        else:
            what = f"no broker knows the topic {topic!r}; asked for {waited_ms} ms"
            cause = UnknownTopicOrPartitionException(f"topic {topic!r}", stored=Stored.NO)
        error = TimeoutException(what, stored=Stored.NO)
        error.__cause__ = cause
        return error

    def give_up(self, error: KafkaException) -> list[Effect]:
        """Fail everything and everybody: the shell cannot go on."""
        self.delivery.give_up(error)
        calls = [flush.call for flush in self._flushes] + ([self._close.call] if self._close is not None else [])
        effects, self.delivery.out = self.delivery.out, []
        effects += [FailCall(call=call, error=error) for call in calls]
        self._flushes.clear()
        return effects if self.transaction is None else effects + self.transaction.give_up(error)

    # Events.

    def _take_in(self, event: events.Event, now_ms: int) -> None:
        match event:
            case events.TimePassed():
                pass
            case events.TopicWanted():
                self.wiring.metadata.use(event.topic, now_ms)
                if event.is_stale:
                    self.wiring.metadata.refresh()
            case events.FlushCalled():
                positions = {tp: self.accumulator.position_next(tp) for tp in self._outstanding()}
                self._flushes.append(_Flush(event.call, positions))
            case events.CloseCalled():
                self._close = _Close(event.call, event.deadline_ms)
            case events.HandlerAnswered():
                self.delivery.desk.answered(event, now_ms)
            case Answered():
                self._answered(event, now_ms)
            case Written():
                self.delivery.written(event, now_ms)
            case Failed():
                self._failed(event, now_ms)
            case Connected():
                self._refused_login = None
                self.wiring.attempts.succeeded(event.address)
            case Disconnected():
                self._disconnected(event, now_ms)
            case _:
                self._call(event)

    def _call(self, event: events.TransactionCall) -> None:
        assert self.transaction is not None, "the public producer refuses transactions without a transactional id"
        self.delivery.out += self.transaction.call(event)

    def _disconnected(self, event: Disconnected, now_ms: int) -> None:
        self.wiring.attempts.failed(event.address, event.reason, now_ms)
        self.wiring.metadata.refresh()
        if event.error is not None:
            self._refused_login = event.error, now_ms
            self.delivery.out.append(WakeCallers())
        if self.transaction is not None:
            self.transaction.coordinators.forget_address(event.address)

    def _answered(self, event: Answered, now_ms: int) -> None:
        token = event.token
        if throttle_ms := getattr(event.message, "throttle_time_ms", 0):
            self.wiring.attempts.throttled(event.address, now_ms + throttle_ms)
        match token:
            case ProduceSent():
                self.delivery.answered(event, now_ms)
            case MetadataAsked():
                self.wiring.metadata.answered(event.message, now_ms)
                self.delivery.queues.metadata_heard()
                self.delivery.desk.metadata_heard(now_ms)
                self.delivery.out.append(WakeCallers())
            case IdentityAsked():
                refusal = self.identity.answered(event.message, now_ms)
                if refusal is not None:
                    self.delivery.give_up(refusal)
            case FactsAsked():
                self._facts_heard(token.topic, event.message, now_ms)
            case StepAsked():
                assert self.transaction is not None
                wait_ms = self.wiring.wait_ms(self.transaction.failures + 1)
                self.delivery.out += self.transaction.answered(token.step, event.message, wait_ms, now_ms)
            case _:
                raise AssertionError(f"an answer to nothing: {event}")

    def _failed(self, event: Failed, now_ms: int) -> None:
        token, error = event.token, network_error(event)
        match token:
            case ProduceSent():
                self.delivery.failed(event, now_ms)
            case MetadataAsked():
                self.wiring.metadata.unanswered(error)
            case IdentityAsked() if event.is_unsupported or event.error is not None:
                self.identity.unanswered(error, now_ms)
                self.delivery.give_up(error)
            case IdentityAsked():
                self.identity.unanswered(error, now_ms)
            case FactsAsked():
                self._facts_heard(token.topic, None, now_ms)
            case StepAsked() if event.is_unsupported or event.error is not None:
                assert self.transaction is not None
                self.delivery.out += self.transaction.unsupported(token.step, error)
            case StepAsked():
                assert self.transaction is not None
                wait_ms = self.wiring.wait_ms(self.transaction.failures + 1)
                self.delivery.out += self.transaction.unanswered(token.step, error, wait_ms, now_ms)
            case _:
                raise AssertionError(f"a failure of nothing: {event}")

    def _facts_heard(self, topic: str, answer: Any, now_ms: int) -> None:
        self._facts_under_way.discard(topic)
        state = self.wiring.cluster.topic(topic)
        counts = [] if state is None else [partition.replica_count for partition in state.partitions.values()]
        self.delivery.facts_heard(topic, read_facts(answer, min(counts, default=None), now_ms), now_ms)

    # The round.

    @property
    def _hurries(self) -> bool:
        """Whether nothing lingers: somebody waits for everything, or for memory."""
        is_completing = self.transaction is not None and self.transaction.is_completing
        return bool(self._flushes) or self._close is not None or is_completing or self.callers_waiting_for_memory > 0

    def _advance(self, now_ms: int) -> None:
        delivery, transaction = self.delivery, self.transaction
        self._advanced_ms = now_ms
        self.partitioner.loads_changed()
        delivery.expire(now_ms)
        if transaction is not None:
            delivery.out += transaction.expire(now_ms, self._unreachable)
            if transaction.is_failed:
                delivery.drop_unsent()
        if self._close is not None and now_ms >= self._close.deadline_ms:
            delivery.give_up(TimeoutException("the producer was closed before this record had its outcome", stored=Stored.NO))
        delivery.send_ready(now_ms, hurries=self._hurries)
        if transaction is not None:
            self._advance_transaction(transaction, now_ms)
        self._ask(now_ms)
        self._settle(now_ms)
        self.next_deadline_ms = self._next_deadline(now_ms)

    def _advance_transaction(self, transaction: TransactionManager, now_ms: int) -> None:
        delivery = self.delivery
        has_batches = not delivery.is_idle
        step = transaction.next_step(now_ms, has_batches=has_batches, needs_epoch=delivery.needs_epoch)
        if step is not None and (address := self._address_for(transaction, step, now_ms)) is not None:
            self._request(address, transaction.request(step), StepAsked(step))
        delivery.out += transaction.finished(has_batches=has_batches, needs_epoch=delivery.needs_epoch)

    def _unreachable(self) -> KafkaException | None:
        """Why no broker can be reached, as a caller is told that waited for `max.block.ms`; None when one can."""
        wiring = self.wiring
        addresses = wiring.known_addresses
        if wiring.cluster.updated_ms is not None and not all(wiring.attempts.failures(address) for address in addresses):
            return None
        return NetworkException(wiring.attempts.describe(addresses, wiring.block_ms), stored=Stored.NO)

    def _address_for(self, transaction: TransactionManager, step: Step, now_ms: int) -> Address | None:
        address = transaction.address_of(step)
        if address is None:
            return self.wiring.any_address(now_ms)
        return address if self.wiring.attempts.may_try(address, now_ms) else None

    def _ask(self, now_ms: int) -> None:
        """Metadata, an identity, configurations: from any broker."""
        wiring = self.wiring
        if wiring.metadata.is_due(now_ms) and (address := wiring.any_address(now_ms)) is not None:
            self._request(address, wiring.metadata.request(now_ms), METADATA_ASKED)
        if self.identity.is_due(now_ms) and (address := wiring.any_address(now_ms)) is not None:
            self._request(address, self.identity.request(), IDENTITY_ASKED)
        for topic in [name for name in self.delivery.facts_wanted if name not in self._facts_under_way]:
            if (address := wiring.any_address(now_ms)) is not None:
                self._facts_under_way.add(topic)
                self._request(address, facts_request(topic), FactsAsked(topic))

    def _request(self, address: Address, message: Any, token: Any) -> None:
        self.delivery.out.append(SendRequest(address=address, message=message, token=token, timeout_ms=self.wiring.request_timeout_ms))

    def _outstanding(self) -> list[TopicPartition]:
        return [tp for tp in self.delivery.partitions() if self.delivery.position_outstanding(tp) is not None]

    def _settle(self, now_ms: int) -> None:
        """Callers of flush and close whose wait is over."""
        for flush in list(self._flushes):
            for topic_partition, position in list(flush.positions.items()):
                outstanding = self.delivery.position_outstanding(topic_partition)
                if outstanding is None or outstanding >= position:
                    del flush.positions[topic_partition]
            if not flush.positions:
                self._flushes.remove(flush)
                self.delivery.out.append(CompleteCall(call=flush.call))
        is_done = self.is_idle and not (self.transaction is not None and self.transaction.has_callers)
        if self._close is not None and self._close.call is not None and (is_done or now_ms >= self._close.deadline_ms):
            self.delivery.out.append(CompleteCall(call=self._close.call))
            self._close.call = None

    def _next_deadline(self, now_ms: int) -> int | None:
        wiring = self.wiring
        times: list[int | None] = []
        times.append(self.delivery.next_deadline_ms(now_ms, hurries=self._hurries))
        metadata_ms = wiring.metadata.next_deadline_ms(now_ms)
        times.append(metadata_ms)
        times.append(self.identity.next_deadline_ms(now_ms))
        if self.transaction is not None:
            times.append(self.transaction.next_deadline_ms(now_ms))
        if self._close is not None and self._close.call is not None:
            times.append(self._close.deadline_ms)
        if not self.is_idle or metadata_ms is not None or self.transaction is not None:
            # Each of them, not the first: a leader or coordinator that has to wait may be another than the one that need not.
            times += [wiring.attempts.retry_at_ms(address, now_ms) for address in wiring.known_addresses]
        return min((time for time in times if time is not None and time > now_ms), default=None)
