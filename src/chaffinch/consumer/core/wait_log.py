"""ConsumerWaitLog: log lines about what a consumer waits for while `poll` returns nothing: brokers, the coordinator, leaders, members.

A silent broker fails no request before the request timeout, so `PendingResponses` records for how long each address has owed a response or
a connection. `update` runs after each event and lists the current causes; `WaitLog` decides when each is logged. Missing topics and
partitions are logged by `missing_partitions.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.client.effects import SendRequest
from chaffinch.client.known_cluster import with_advertised_hint
from chaffinch.client.wait_log import FIRST_LINE_MS, Wait, WaitLog, in_words
from chaffinch.consumer.core.call_errors import names_of
from chaffinch.consumer.core.context import LANE_FETCH, LANES, Cause, ConsumerContext, Effect
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.positions import PartitionState, Stage
from chaffinch.errors import ErrorCode, codes
from chaffinch.identifiers import TopicPartition

ATTEMPTS_GAP_MS_MAX: Final = 5_000
"""Attempts with a longer gap in between belong to different waits."""


class PendingResponses:
    """Requests without a response, counted by address. The owner reports sent requests and network events."""

    __slots__ = ("_connected", "_counts", "_last_ms", "_since_ms")

    def __init__(self) -> None:
        self._counts: Counter[Address] = Counter()
        self._since_ms: dict[Address, int] = {}
        self._last_ms: dict[Address, int] = {}
        """When the last attempt failed."""
        self._connected: set[Address] = set()

    def sent(self, address: Address, steady_ms: int) -> None:
        is_new = not self._counts[address] and steady_ms - self._last_ms.get(address, steady_ms) > ATTEMPTS_GAP_MS_MAX
        self._counts[address] += 1
        self._since_ms[address] = steady_ms if is_new else self._since_ms.get(address, steady_ms)

    def response_received(self, address: Address, steady_ms: int) -> None:
        self._connected.add(address)
        self._counts[address] -= 1
        if self._counts[address] > 0:
            self._since_ms[address] = steady_ms
        else:
            self._since_ms.pop(address, None)

    def request_failed(self, address: Address, steady_ms: int, *, was_refused_here: bool) -> None:
        """No response. `was_refused_here`: the request could not be sent at all. Otherwise the address owes one to the next attempt,
        too.
        """
        self._counts[address] -= 1
        self._last_ms[address] = steady_ms
        if was_refused_here and self._counts[address] <= 0:
            self._since_ms.pop(address, None)

    def connected(self, address: Address) -> None:
        self._connected.add(address)

    def disconnected(self, address: Address, steady_ms: int, *, had_response: bool) -> None:
        """`had_response`: the connection had responses, so the wait for the next one starts now."""
        self._connected.discard(address)
        if had_response and address in self._since_ms:
            self._since_ms[address] = steady_ms

    def is_connected(self, address: Address) -> bool:
        return address in self._connected

    def since_ms(self, address: Address) -> int | None:
        """The last response, or the first request after it; None if the address owes nothing."""
        return self._since_ms.get(address)

    def owed(self) -> Iterator[tuple[Address, int]]:
        """All addresses that owe a response, and since when."""
        yield from self._since_ms.items()


ALL_BROKERS: Final = ("brokers",)
GAP_MS_MAX: Final = 1_500
"""A cause that is absent for less than this, between two attempts, is still the same wait."""


@dataclass(slots=True)
class _Roles:
    """The purposes for which the consumer needs one broker."""

    address: Address
    """With the lane that does not respond."""
    coordinates: bool = False
    leads: list[TopicPartition] = field(default_factory=list)


class ConsumerWaitLog:
    """The waits of one consumer. Errors of calls that time out name them as well: `ConsumerContext.timeout_error`."""

    def __init__(self, context: ConsumerContext, group: Group | None) -> None:
        self.responses = PendingResponses()
        self._context = context
        self._group = group
        self._fetch_wait_ms: int = context.settings["fetch.max.wait.ms"]
        self._log = WaitLog()
        self._seen: dict[tuple[str, ...], tuple[int, int]] = {}
        """By key: when the cause was first and last seen."""

    # Network events.

    def handle(self, event: ResponseReceived | RequestFailed | RequestWritten | Connected | Disconnected, steady_ms: int) -> None:
        address, responses = event.address, self.responses
        match event:
            case ResponseReceived():
                responses.response_received(address, steady_ms)
            case RequestFailed():
                responses.request_failed(address, steady_ms, was_refused_here=event.is_unsupported)
            case Connected():
                responses.connected(address)
            case Disconnected():
                responses.disconnected(address, steady_ms, had_response=event.had_response)
            case RequestWritten():
                pass

    def requests_sent(self, effects: Iterable[Effect], steady_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                self.responses.sent(effect.address, steady_ms)

    # The round.

    def update(self, needed: Collection[TopicPartition], leaderless: Collection[TopicPartition], steady_ms: int) -> None:
        """`needed`: partitions that calls wait for. `leaderless`: needed partitions without a known leader."""
        self._context.causes = []
        for cause in self._causes(needed, leaderless, steady_ms):
            since_ms, last_ms = self._seen.get(cause.key, (steady_ms, steady_ms))
            since_ms = cause.since_ms or (since_ms if steady_ms - last_ms <= GAP_MS_MAX else steady_ms)
            self._seen[cause.key] = since_ms, steady_ms
            self._context.causes.append(cause._replace(since_ms=since_ms))
            wait = Wait(cause.key, cause.what, since_ms, cause.why, until_ms=cause.until_ms, limit=cause.limit)
            line = self._log.line(wait, steady_ms)
            if line is not None:
                self._context.report(line)
        self._seen = {key: seen for key, seen in self._seen.items() if steady_ms - seen[1] <= GAP_MS_MAX}
        if not self._seen:
            self._log.over()

    def _causes(self, needed: Collection[TopicPartition], leaderless: Collection[TopicPartition], steady_ms: int) -> Iterator[Cause]:
        context, is_grouped = self._context, self._needs_coordinator
        if not (needed or leaderless or is_grouped or self._context.subscriptions.assigned):
            return
        addresses = context.known_addresses
        is_known = context.cluster.updated_ms is not None
        if (all if is_known else any)(self._is_unreachable(address) for address in addresses):
            owed = dict(self.responses.owed())
            since_ms = min((owed[lane] for address in addresses for lane in _lanes(address) if lane in owed), default=0)
            yield Cause(ALL_BROKERS, "a broker of the cluster", context.attempts.describe(addresses), is_of_all=True, since_ms=since_ms)
            return
        yield from self._refused(leaderless)
        brokers = list(self._brokers(needed, steady_ms))
        yield from brokers
        if is_grouped and not any(cause.is_of_group for cause in brokers):
            yield from self._coordinator(steady_ms)

    def _is_unreachable(self, address: Address) -> bool:
        """Whether connection attempts over all lanes have failed; at the start, whether there was no response yet."""
        if self._context.cluster.updated_ms is not None and any(map(self.responses.is_connected, _lanes(address))):
            return False
        return any(self._context.attempts.failures(lane) or self.responses.since_ms(lane) is not None for lane in _lanes(address))

    # Partitions.

    def _refused(self, leaderless: Collection[TopicPartition]) -> Iterator[Cause]:
        by_code: dict[ErrorCode | None, list[TopicPartition]] = {}
        for tp in leaderless:
            topic = self._context.cluster.topic(tp.topic)
            if topic is None or topic.code is codes.UNKNOWN_TOPIC_OR_PARTITION or tp.partition >= topic.partition_count > 0:
                continue  # Metadata is on its way, or the partition does not exist.
            if tp.partition >= 0 or not topic.partitions:
                by_code.setdefault(topic.code if topic.code.is_retriable else None, []).append(tp)
        for code, tps in by_code.items():
            why = "no broker leads them now: their replicas may be down" if code is None else f"brokers respond with {code.name}"
            yield Cause(("leader",), f"a leader of {names_of(tps)}", why, frozenset(tps))
        refused: dict[ErrorCode, list[TopicPartition]] = {}
        for tp, state in self._context.subscriptions.assigned.items():
            if state.last_error_code is not None and tp not in leaderless:
                refused.setdefault(state.last_error_code, []).append(tp)
        for code, tps in refused.items():
            why = f"it responds with {code.name}"
            yield Cause(("refused", code.name), f"the leader of {names_of(tps)}", why, frozenset(tps))

    def _brokers(self, needed: Collection[TopicPartition], steady_ms: int) -> Iterator[Cause]:
        """Leaders and a coordinator that are not connected or do not respond."""
        roles_by_listener: dict[Address, _Roles] = {}
        if self._needs_coordinator and self._group is not None:
            finder = self._group.finder
            known = finder.known_address or (finder.lost_address if self._context.coordinator_error is None else None)
            may_hold = self._group.membership.state is State.JOINING
            if known is not None and self._is_silent(known, steady_ms, may_hold=may_hold):
                roles_by_listener.setdefault(known.first_lane, _Roles(known)).coordinates = True
        nodes = self._context.cluster.nodes.values()
        silent = {address for node in nodes for address in _lanes(node) if self._is_silent(address, steady_ms)}
        for tp, lane in self._needed_lanes(needed) if silent else ():
            leader = self._context.cluster.leader_address(tp)
            if leader is not None and (address := leader._replace(lane=lane)) in silent:
                roles_by_listener.setdefault(leader, _Roles(address)).leads.append(tp)
        for listener, roles in roles_by_listener.items():
            since_ms = self.responses.since_ms(roles.address) or 0
            key, tps = ("broker", str(listener)), frozenset(roles.leads)
            yield Cause(key, self._subject(listener, roles), self._reason(roles.address), tps, roles.coordinates, since_ms=since_ms)

    def _needed_lanes(self, needed: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, int]]:
        """Partitions whose leader has to respond now, and over which lane."""
        states = self._context.subscriptions.assigned
        yield from ((tp, LANE_FETCH if state.stage is Stage.READING else 0) for tp, state in states.items() if _needs_response(state))
        yield from ((tp, 0) for tp in needed if tp not in states or not _needs_response(states[tp]))

    def _is_silent(self, address: Address, steady_ms: int, *, may_hold: bool = False) -> bool:
        """`may_hold`: the broker may delay its response without a limit.

        A connection that ended without a pending request is not silence: the next request opens another one.
        """
        since_ms = self.responses.since_ms(address)
        if since_ms is None or not self.responses.is_connected(address):
            return since_ms is not None
        return not may_hold and steady_ms - since_ms > self._allowed_silence_ms(address)

    def _allowed_silence_ms(self, address: Address) -> int:
        return self._fetch_wait_ms if address.lane == LANE_FETCH else 0

    def _subject(self, listener: Address, roles: _Roles) -> str:
        roles_text = [f"coordinates group {self._context.group_id!r}"] if roles.coordinates else []
        roles_text += [f"leads {names_of(roles.leads)}"] if roles.leads else []
        return f"{listener}, which {' and '.join(roles_text)}"

    def _reason(self, address: Address) -> str:
        if self.responses.is_connected(address):
            return "no response yet"
        attempts, listener = self._context.attempts, address.first_lane
        why = attempts.reason(address) or attempts.reason(listener)
        return why or with_advertised_hint("no connection yet", listener, self._context.bootstrap.servers)

    # The group.

    @property
    def _needs_coordinator(self) -> bool:
        return self._group is not None and (self._group.needs_coordinator)

    def _coordinator(self, steady_ms: int) -> Iterator[Cause]:
        assert self._group is not None, "only called with a group"
        probe = self._group.membership.probe
        error = self._context.coordinator_error or self._group.membership.last_error or self._group.commits.last_error
        if error is not None:
            yield Cause(("coordinator",), f"the coordinator of group {self._context.group_id!r}", in_words(error), is_of_group=True)
        elif probe.waiting_since_ms is not None and self._group.membership.state is State.JOINING:
            until_ms = probe.waiting_since_ms + int(self._context.settings["max.poll.interval.ms"])
            what = f"other members of group {self._context.group_id!r}"
            why = "the coordinator prepares a rebalance, and they have not rejoined yet"
            since_ms, limit = probe.waiting_since_ms, "max.poll.interval.ms"
            yield Cause(("members",), what, why, is_of_group=True, since_ms=since_ms, until_ms=until_ms, limit=limit)

    def report_unconfirmed_leave(self) -> None:
        """`close` has no time left, and LeaveGroup has no response."""
        waits = self._context.wait_text((), uses_group=True)
        session = f"session.timeout.ms, {self._context.settings['session.timeout.ms']} ms"
        text = f"close: the coordinator of group {self._context.group_id!r} has not confirmed LeaveGroup in time"
        self._context.report(f"{text}{waits and '; '}{waits}; if it did not receive it, the group removes the member after {session}")

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When a log line is due, or a silence is long enough."""
        times = [self._log.due_ms(cause.key, cause.since_ms) for cause in self._context.causes]
        times += [since_ms + max(FIRST_LINE_MS, self._allowed_silence_ms(address) + 1) for address, since_ms in self.responses.owed()]
        return min((time_ms for time_ms in times if time_ms > steady_ms), default=None)


def _lanes(address: Address) -> list[Address]:
    return [address._replace(lane=lane) for lane in range(LANES)]


def _needs_response(state: PartitionState) -> bool:
    """Whether a response of the leader is needed now."""
    return state.is_usable and not state.is_paused and state.stage not in (Stage.COMMITTED, Stage.NEEDS_SEEK)
