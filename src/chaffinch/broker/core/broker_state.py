"""Everything the handlers of a broker share: one object, owned by `BrokerCore`, handed to each handler."""

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

    `grown` collects the partitions that got records while an event was handled, `changed_keys` what else waiting answers may wait for.
    `scheduled_tasks` are called when their time comes. `lends_files`: the answer to the request at hand is the next thing that is
    sent, so its records may stand in files until then. `records_max()`: bytes of records that the answer to a fetch may carry now, as the
    shell sees what waits unread; but for one batch. `bytes_handled` only grows: bytes of records that were read for answers, or unpacked
    and checked (a refused batch, unpacked or not, counts for as much as it may be). Who can go on later looks at it, and then lets others
    have their turn.

    There are two clocks. Handlers and chores receive `steady_ms`, which measures waits. Times that are stored, compared with stored times,
    or reported are `wall.at(steady_ms)`. Code that mixes them up fails as soon as the machine's clock is set.
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
        """Answers that wait for `key` are tried again once the event at hand is done."""
        self.changed_keys.append(key)

    @property
    def numbering(self) -> Numbering:
        return "kip" if self.settings["error.numbering"] == "kip" else "apache"

    def log_idle_options(self, values: Mapping[str, Any]) -> None:
        """Say in the log which of these options of the broker change nothing."""
        for name in sorted(values):
            if options.is_idle(name):
                self.refusals.log_without_effect(name, as_text(name, values[name]), instead=kafka_options.INSTEAD.get(name))

    def log_options_without_effect(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Say in the log which of a topic's options change nothing."""
        for name in sorted(overrides.keys() - WITH_EFFECT):
            self.refusals.log_without_effect(name, overrides[name], f" of topic {topic}")

    def is_coordinator(self, node_id: int, key: str) -> bool:
        """Whether requests about this group or transactional id belong on this node."""
        node = self.nodes.coordinator_of(key)
        return node is not None and node.id == node_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedResponse:
    """An answer that has to wait: for a change of one of `keys`, or until `deadline_ms`.

    A TopicPartition changes when it gets records, everything else when `BrokerState.changed` says so. `answer(steady_ms, is_last)` is
    called after a change and after the deadline, then with `is_last`; None means wait on, another DelayedResponse to wait for something
    else from now on. `is_unfinished`: the request itself is not done yet, and waits only for others to have their turn.
    """

    deadline_ms: int
    keys: Collection[Hashable]
    answer: Callable[[int, bool], Result | None]
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is to be closed instead of an answer; without a reason nothing is said of it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RespondThenClose:
    """The connection is to be closed after this answer."""

    message: Message


class NoResponse:
    """No answer: Produce with acks=0."""


NO_RESPONSE = NoResponse()

Result: TypeAlias = Message | DelayedResponse | Close | RespondThenClose | NoResponse
Handler: TypeAlias = Callable[[BrokerState, RequestReceived, Any, int], Result]
"""(state, event, its message, steady_ms) -> what to do about the answer."""

FaultHandler: TypeAlias = Callable[[BrokerState, RequestReceived, Any, int, Fault], Result]
"""The same, with a fault whose action is ERROR."""


def result_of(outcome: Outcome, steady_ms: int) -> Result:
    """What a step of a login comes to."""
    if outcome.message is None:
        return Close()
    if not outcome.ends:
        return outcome.message
    last = RespondThenClose(outcome.message)
    if not outcome.delay_ms:
        return last
    return DelayedResponse(deadline_ms=steady_ms + outcome.delay_ms, keys=(), answer=lambda _steady_ms, is_last: last if is_last else None)


def log_refusal(broker: BrokerState, event: RequestReceived, steady_ms: int, *, subject: Any, code: ErrorCode, reason: str) -> None:
    """Say in the log what was refused. `subject`: a TopicPartition, or whatever else the request is about."""
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
