"""Broker state: everything that handlers share. One object, owned by `BrokerCore` and passed to each handler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chaffinch.broker.core import kafka_options, options
from chaffinch.broker.core.configs.dynamic_settings import DynamicSettings
from chaffinch.broker.core.contents_recorder import ContentsRecorder
from chaffinch.broker.core.counters import Counters
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.fault_script import Fault, FaultScript
from chaffinch.broker.core.fetch.sessions import FetchSessions
from chaffinch.broker.core.groups.coordinator import GroupCoordinator
from chaffinch.broker.core.groups.offsets import GroupOffsets
from chaffinch.broker.core.refusal_log import RefusalLog
from chaffinch.broker.core.replicas.cluster_membership import ClusterMembership
from chaffinch.broker.core.replicas.declared_replicas import DeclaredNodes
from chaffinch.broker.core.security.authentication import Authentication, Outcome
from chaffinch.broker.core.timers import ScheduledTask
from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.broker.core.topics.topic_options import WITH_EFFECT
from chaffinch.broker.core.transactions.coordinator import TransactionCoordinator
from chaffinch.errors.codes import ErrorCode, Numbering
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.schema import Message
from chaffinch.settings import as_text
from chaffinch.storage.wall_time import WallTime


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """The parts of a broker.

    - `grown`: partitions that received records during the current event.
    - `changed_keys`: other keys that changed and that delayed responses may wait for.
    - `scheduled_tasks`: called when their deadlines are reached.
    - `lends_files`: the response to the current request is sent next, so its records may refer to file ranges until then.
    - `records_max()`: bytes of records that a fetch response may carry now, according to the shell's unread responses; a single batch may
      exceed it.
    - `bytes_handled`: only grows. Counts bytes of records that were read for responses, or decompressed and checked (a refused batch counts
      as its largest possible size). Long work checks it to yield to other requests.

    There are two clocks. Handlers and scheduled tasks receive `steady_ms`, which measures timeouts. Times that are stored, compared with
    stored times, or reported are `wall.at(steady_ms)`. Code that confuses them fails as soon as the machine's clock is set.
    """

    cluster_id: str
    settings: DynamicSettings
    nodes: DeclaredNodes
    topics: TopicRegistry
    transactions: TransactionCoordinator
    offsets: GroupOffsets
    groups: GroupCoordinator
    membership: ClusterMembership
    fetch_sessions: FetchSessions
    authentication: Authentication
    contents_recorder: ContentsRecorder
    wall: WallTime
    counters: Counters = field(default_factory=Counters)
    faults: FaultScript = field(default_factory=FaultScript)
    refusals: RefusalLog = field(default_factory=RefusalLog)
    grown: list[Partition] = field(default_factory=list)
    changed_keys: list[Hashable] = field(default_factory=list)
    scheduled_tasks: list[ScheduledTask] = field(default_factory=list)
    lends_files: bool = False
    records_max: Callable[[], int] = lambda: sys.maxsize
    bytes_handled: int = 0

    def changed(self, key: Hashable) -> None:
        """Try the delayed responses that wait for `key` after the current event."""
        self.changed_keys.append(key)

    @property
    def numbering(self) -> Numbering:
        return "kip" if self.settings["error.numbering"] == "kip" else "apache"

    def log_idle_options(self, values: Mapping[str, Any]) -> None:
        """Log which of these broker options have no effect."""
        for name in sorted(values):
            if options.is_idle(name):
                self.refusals.log_without_effect(name, as_text(name, values[name]), instead=kafka_options.INSTEAD.get(name))

    def log_options_without_effect(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Log which of a topic's options have no effect."""
        for name in sorted(overrides.keys() - WITH_EFFECT):
            self.refusals.log_without_effect(name, overrides[name], f" of topic {topic}")

    def is_coordinator(self, node_id: int, key: str) -> bool:
        """Whether this node is the coordinator of this group or transactional id."""
        node = self.nodes.coordinator_of(key)
        return node is not None and node.id == node_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedResponse:
    """A delayed response: waits for a change of one of `keys`, or until `deadline_ms`.

    A TopicPartition changes when it receives records, every other key when `BrokerState.changed` is called. `answer(steady_ms, is_last)` is
    called after a change, and after the deadline with `is_last`. It returns None to keep waiting, or another DelayedResponse to wait for
    something else. `is_unfinished`: the request itself is not completely processed yet and only yields to other requests.
    """

    deadline_ms: int
    keys: Collection[Hashable]
    answer: Callable[[int, bool], Result | None]
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection instead of responding; without a reason nothing is logged."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RespondThenClose:
    """Send this response, then close the connection."""

    message: Message


class NoResponse:
    """No response: Produce with acks=0."""


NO_RESPONSE = NoResponse()

Result: TypeAlias = Message | DelayedResponse | Close | RespondThenClose | NoResponse
Handler: TypeAlias = Callable[[BrokerState, RequestReceived, Any, int], Result]
"""(state, event, message, steady_ms) -> result."""

FaultHandler: TypeAlias = Callable[[BrokerState, RequestReceived, Any, int, Fault], Result]
"""A handler that is also given a fault with action ERROR."""


def result_of(outcome: Outcome, steady_ms: int) -> Result:
    """The result of one step of a login."""
    if outcome.message is None:
        return Close()
    if not outcome.ends:
        return outcome.message
    last = RespondThenClose(outcome.message)
    if not outcome.delay_ms:
        return last
    return DelayedResponse(deadline_ms=steady_ms + outcome.delay_ms, keys=(), answer=lambda _steady_ms, is_last: last if is_last else None)


def log_refusal(broker: BrokerState, event: RequestReceived, steady_ms: int, *, subject: Any, code: ErrorCode, reason: str) -> None:
    """Log a refusal. `subject`: a TopicPartition, or another subject of the request."""
    broker.refusals.log_refused(
        api=event.request.api.name,
        client=event.request.client_id or "",
        subject=str(subject),
        within=subject.topic if isinstance(subject, TopicPartition) else str(subject),
        code=code.name,
        reason=reason,
        steady_ms=steady_ms,
        host=event.client_host.removeprefix("/"),
    )
