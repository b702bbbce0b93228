"""Lookups of committed offsets (OffsetFetch), for positions and for calls.

They name topics by id where the coordinator supports it (Apache Kafka 4.2), so that an offset of a deleted topic is never used for a new
topic of the same name. Follows ConsumerCoordinator.java.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from chaffinch.client import offset_requests
from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.effects import CompleteCall, FailCall
from chaffinch.client.offset_requests import LAST_VERSION_WITH_NAMES, VERSION_WITH_IDS
from chaffinch.consumer.core.call_errors import IN_TIME, names_of, no_response_error
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.membership import COORDINATOR_GONE, Membership
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.pending_offsets import Lookup
from chaffinch.consumer.core.positions import Position, Stage
from chaffinch.consumer.core.reset_policy import ResetPolicy
from chaffinch.errors import KafkaException, NetworkException, codes, exception_for
from chaffinch.identifiers import NO_OFFSET, OffsetAndMetadata, TopicPartition
from chaffinch.protocol.primitives import ZERO_UUID

UNKNOWN_TOPIC: Final = frozenset({codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID})
RETRIED: Final = UNKNOWN_TOPIC | {codes.COORDINATOR_LOAD_IN_PROGRESS, codes.UNSTABLE_OFFSET_COMMIT}
COORDINATOR_LOST: Final = COORDINATOR_GONE | {codes.REQUEST_TIMED_OUT}


class CommittedOffsets:
    """The lookups of one group member."""

    def __init__(self, context: ConsumerContext, membership: Membership, resets: ResetPolicy) -> None:
        self._context = context
        self._membership = membership
        self._finder = membership.finder
        self._resets = resets
        self._lookups: list[Lookup] = []
        self._position_lookup: Lookup | None = None
        self._requires_stable = True
        self._without_topic_ids: set[Address] = set()
        """Coordinators that support no topic ids in OffsetFetch."""

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator is needed."""
        return bool(self._lookups)

    @property
    def last_error(self) -> KafkaException | None:
        """The last error of a pending lookup."""
        return next((lookup.last_error for lookup in self._lookups if lookup.last_error is not None), None)

    def look_up(self, tps: Collection[TopicPartition], deadline_ms: int, call: Any, limit: str = IN_TIME) -> None:
        """Committed offsets for a call: a mapping, with None where nothing is committed."""
        self._lookups.append(Lookup(tuple(tps), deadline_ms, call, limit))

    def request_positions(self, steady_ms: int) -> None:
        """Look up the committed offsets of partitions without a position."""
        if self._position_lookup is None:
            tps = tuple(state.tp for state in self._context.subscriptions.at(Stage.COMMITTED, steady_ms))
            if tps:
                self._position_lookup = Lookup(tps)
                self._lookups.append(self._position_lookup)

    # The round.

    def advance(self, address: Address, steady_ms: int) -> None:
        """Send requests that are due."""
        for lookup in self._lookups:
            if not lookup.is_under_way and steady_ms >= lookup.not_before_ms:
                self._send(lookup, address)

    def _send(self, lookup: Lookup, address: Address) -> None:
        current = self._context.ids.current
        lookup.is_under_way, lookup.topic_ids = True, {tp: current(tp.topic) for tp in lookup.tps}
        is_known = ZERO_UUID not in lookup.topic_ids.values()
        lookup.has_ids = is_known and not lookup.is_by_name and address.first_lane not in self._without_topic_ids
        ids = lookup.topic_ids if lookup.has_ids else {}
        request = offset_requests.offset_fetch(self._context.group_id, lookup.tps, ids, require_stable=self._requires_stable)
        self._context.send(address, request, lookup, version_max=VERSION_WITH_IDS if ids else LAST_VERSION_WITH_NAMES)

    def expire(self, steady_ms: int) -> None:
        """Fail the calls whose deadline has passed."""
        for lookup in [found for found in self._lookups if found.deadline_ms is not None and steady_ms >= found.deadline_ms]:
            self._lookups.remove(lookup)
            text = f"the committed offsets of {names_of(lookup.tps)} were not received {lookup.limit}"
            text += self._rebalancing() or (self._finder.no_response_text() if lookup.is_under_way else "")
            error = self._context.timeout_error(f"group {self._context.group_id!r}: {text}", lookup.last_error, api="OffsetFetch")
            self._context.out.append(FailCall(call=lookup.call, error=error))

    def _rebalancing(self) -> str:
        """Part of an error message: the coordinator responds in order, and to JoinGroup and SyncGroup only at the end of the rebalance."""
        if self._membership.state not in (State.JOINING, State.SYNCING) or self._finder.known_address is None:
            return ""
        return ": the group rebalances, and its coordinator responds after that: poll until partitions are assigned"

    def connection_lost(self, address: Address) -> None:
        """A connection has ended: the broker may have another version when it is back."""
        self._without_topic_ids.discard(address.first_lane)

    def fail_all(self, error: KafkaException) -> None:
        """Fail all calls."""
        self._context.out += [FailCall(call=lookup.call, error=error) for lookup in self._lookups if lookup.call is not None]
        self._lookups = [lookup for lookup in self._lookups if lookup.call is None]

    # Responses.

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        lookup: Lookup = event.token
        lookup.is_under_way = False
        response = event.message
        group = response.groups[0] if response.groups else response
        names = {topic_id: tp.topic for tp, topic_id in lookup.topic_ids.items()}
        code = codes.by_number(group.error_code, numbering=event.numbering)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(lookup.tps)
        for topic in group.topics:
            for partition in topic.partitions:
                if partition.error_code and code is codes.NONE:
                    code = codes.by_number(partition.error_code, numbering=event.numbering)
                if partition.committed_offset != NO_OFFSET:
                    committed = OffsetAndMetadata(partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch)
                    found[TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.partition_index)] = committed
        if code is codes.UNKNOWN_TOPIC_ID:
            self._context.refresh()
            lookup.is_by_name = lookup is not self._position_lookup  # Calls mean the topic that has the name now.
        if code is not codes.NONE:
            self._handle_error(lookup, exception_for(code, api="OffsetFetch"), steady_ms)
            return
        if lookup not in self._lookups:
            return
        self._lookups.remove(lookup)
        if lookup is self._position_lookup:
            self._position_lookup = None
            self._set_positions(found, lookup, steady_ms)
        else:
            self._context.out.append(CompleteCall(call=lookup.call, result=found))

    def request_failed(self, lookup: Lookup, event: RequestFailed, steady_ms: int) -> None:
        """No response."""
        lookup.is_under_way = False
        if event.is_unsupported and lookup.has_ids:
            self._without_topic_ids.add(event.address.first_lane)
            return
        if event.is_unsupported and self._requires_stable:
            self._requires_stable = False  # Brokers before KIP-447 do not support it.
            return
        self._handle_error(lookup, no_response_error(event, "OffsetFetch"), steady_ms)

    def _handle_error(self, lookup: Lookup, error: KafkaException, steady_ms: int) -> None:
        if error.code in COORDINATOR_LOST or isinstance(error, NetworkException):
            self._finder.forget()
        if error.code.is_retriable or error.code in RETRIED:
            lookup.retry_later(error, self._context, steady_ms)
            return
        if lookup in self._lookups:
            self._lookups.remove(lookup)
        if lookup is self._position_lookup:
            self._position_lookup = None
            for tp in lookup.tps:
                state = self._context.subscriptions.assigned.get(tp)
                if state is not None:
                    state.back_off(steady_ms + self._context.wait_ms(1))
            self._context.fail(error)
        else:
            self._context.out.append(FailCall(call=lookup.call, error=error))

    def _set_positions(self, found: Mapping[TopicPartition, OffsetAndMetadata | None], lookup: Lookup, steady_ms: int) -> None:
        """Set positions to the committed offsets, or reset them as auto.offset.reset says.

        An offset of a topic that was deleted in the meantime is ignored, and looked up again.
        """
        for tp, committed in found.items():
            state = self._context.subscriptions.assigned.get(tp)
            if state is None or state.stage is not Stage.COMMITTED:
                continue
            if self._context.ids.is_outdated(tp.topic, lookup.topic_ids.get(tp, ZERO_UUID)):
                continue
            if committed is not None:
                state.seek(Position(committed.offset, committed.leader_epoch))
            elif self._resets.is_known(tp.topic):
                state.reset(self._resets.strategy_for(tp))
            else:
                state.back_off(steady_ms + self._context.wait_ms(1))
        self._context.wake_caller()

    def deadlines_ms(self) -> list[int]:
        """Times at which something may be due."""
        times = [(lookup.not_before_ms, lookup.deadline_ms) for lookup in self._lookups]
        return [time for pair in times for time in pair if time is not None]
