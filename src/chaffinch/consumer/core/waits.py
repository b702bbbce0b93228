"""Log lines about what a consumer waits for while `poll` gives nothing: brokers, the coordinator, leaders, other members of the group.

A silent broker fails no request until the request times out, so it is noted since when each address owes a response, or a connection.
`look` runs after each event. It lists the causes there are now; `WaitLog` decides when each is logged. Topics and partitions that do
not exist are logged by `absences.py`.
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
from chaffinch.consumer.core.group import Group
from chaffinch.consumer.core.membership_moves import State
from chaffinch.consumer.core.positions import PartitionState, Stage
from chaffinch.consumer.core.wiring import LANE_FETCH, LANES, Cause, Effect, Wiring
from chaffinch.errors import ErrorCode, codes
from chaffinch.identifiers import TopicPartition

ATTEMPTS_GAP_MS_MAX: Final = 5_000
"""Attempts with a longer gap in between belong to different waits."""


class PendingResponses:
    """Requests without a response, counted by address. The owner reports what it sends and what the network reports."""

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

    def answered(self, address: Address, steady_ms: int) -> None:
        self._connected.add(address)
        self._counts[address] -= 1
        if self._counts[address] > 0:
            self._since_ms[address] = steady_ms
        else:
            self._since_ms.pop(address, None)

    def failed(self, address: Address, steady_ms: int, *, was_refused_here: bool) -> None:
        """No response. `was_refused_here`: the request was never to be sent. Otherwise the address owes one to the next attempt as well."""
        self._counts[address] -= 1
        self._last_ms[address] = steady_ms
        if was_refused_here and self._counts[address] <= 0:
            self._since_ms.pop(address, None)

    def connected(self, address: Address) -> None:
        self._connected.add(address)

    def disconnected(self, address: Address, steady_ms: int, *, had_response: bool) -> None:
        """`had_response`: the connection was of use, so the wait for the next one begins now."""
        self._connected.discard(address)
        if had_response and address in self._since_ms:
            self._since_ms[address] = steady_ms

    def is_connected(self, address: Address) -> bool:
        return address in self._connected

    def since_ms(self, address: Address) -> int | None:
        """The last response, or the first request after it; None if the address owes nothing."""
        return self._since_ms.get(address)

    def owed(self) -> Iterator[tuple[Address, int]]:
        """All addresses that owe something, and since when."""
        yield from self._since_ms.items()


ALL_BROKERS: Final = ("brokers",)
GAP_MS_MAX: Final = 1_500
"""A cause that is absent for less, between two attempts, is still the same wait."""


@dataclass(slots=True)
class _Roles:
    """What the consumer needs one broker for."""

    address: Address
    """With the lane that is in trouble."""
    coordinates: bool = False
    leads: list[TopicPartition] = field(default_factory=list)


class Waits:
    """The waits of one consumer. Errors of calls that time out name them as well: `Wiring.time_out`."""

    def __init__(self, wiring: Wiring, group: Group | None) -> None:
        self.responses = PendingResponses()
        self._wiring = wiring
        self._group = group
        self._fetch_wait_ms: int = wiring.settings["fetch.max.wait.ms"]
        self._log = WaitLog()
        self._seen: dict[tuple[str, ...], tuple[int, int]] = {}
        """By key: since when the cause is there, and when it was seen last."""

    # What the network reports.

    def note(self, event: ResponseReceived | RequestFailed | RequestWritten | Connected | Disconnected, steady_ms: int) -> None:
        address, responses = event.address, self.responses
        match event:
            case ResponseReceived():
                responses.answered(address, steady_ms)
            case RequestFailed():
                responses.failed(address, steady_ms, was_refused_here=event.is_unsupported)
            case Connected():
                responses.connected(address)
            case Disconnected():
                responses.disconnected(address, steady_ms, had_response=event.had_response)
            case RequestWritten():
                pass

    def note_sent(self, effects: Iterable[Effect], steady_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                self.responses.sent(effect.address, steady_ms)

    # The round.

    def look(self, wanted: Collection[TopicPartition], leaderless: Collection[TopicPartition], steady_ms: int) -> None:
        """`wanted`: partitions that callers ask about. `leaderless`: those that are wanted now and have no known leader."""
        self._wiring.causes = []
        for cause in self._causes(wanted, leaderless, steady_ms):
            since_ms, last_ms = self._seen.get(cause.key, (steady_ms, steady_ms))
            since_ms = cause.since_ms or (since_ms if steady_ms - last_ms <= GAP_MS_MAX else steady_ms)
            self._seen[cause.key] = since_ms, steady_ms
            self._wiring.causes.append(cause._replace(since_ms=since_ms))
            wait = Wait(cause.key, cause.what, since_ms, cause.why, until_ms=cause.until_ms, limit=cause.limit)
            line = self._log.line(wait, steady_ms)
            if line is not None:
                self._wiring.report(line)
        self._seen = {key: seen for key, seen in self._seen.items() if steady_ms - seen[1] <= GAP_MS_MAX}
        if not self._seen:
            self._log.over()

    def _causes(self, wanted: Collection[TopicPartition], leaderless: Collection[TopicPartition], steady_ms: int) -> Iterator[Cause]:
        wiring, is_grouped = self._wiring, self._needs_coordinator
        if not (wanted or leaderless or is_grouped or self._wiring.subscriptions.assigned):
            return
        addresses = wiring.known_addresses
        is_known = wiring.cluster.updated_ms is not None
        if (all if is_known else any)(self._is_unreachable(address) for address in addresses):
            owed = dict(self.responses.owed())
            since_ms = min((owed[lane] for address in addresses for lane in _lanes(address) if lane in owed), default=0)
            yield Cause(ALL_BROKERS, "a broker of the cluster", wiring.attempts.describe(addresses), is_of_all=True, since_ms=since_ms)
            return
        yield from self._refused(leaderless)
        brokers = list(self._brokers(wanted, steady_ms))
        yield from brokers
        if is_grouped and not any(cause.is_of_group for cause in brokers):
            yield from self._coordinator(steady_ms)

    def _is_unreachable(self, address: Address) -> bool:
        """Whether there is no connection although one was asked for, over whatever lane; or no response ever, at the start."""
        if self._wiring.cluster.updated_ms is not None and any(map(self.responses.is_connected, _lanes(address))):
            return False
        return any(self._wiring.attempts.failures(lane) or self.responses.since_ms(lane) is not None for lane in _lanes(address))

    # Partitions.

    def _refused(self, leaderless: Collection[TopicPartition]) -> Iterator[Cause]:
        by_code: dict[ErrorCode | None, list[TopicPartition]] = {}
        for place in leaderless:
            topic = self._wiring.cluster.topic(place.topic)
            if topic is None or topic.code is codes.UNKNOWN_TOPIC_OR_PARTITION or place.partition >= topic.partition_count > 0:
                continue  # Metadata is on its way, or it does not exist.
            if place.partition >= 0 or not topic.partitions:
                by_code.setdefault(topic.code if topic.code.is_retriable else None, []).append(place)
        for code, places in by_code.items():
            why = "no broker leads them now: their replicas may be down" if code is None else f"brokers respond with {code.name}"
            yield Cause(("leader",), f"a leader of {names_of(places)}", why, frozenset(places))
        refused: dict[ErrorCode, list[TopicPartition]] = {}
        for place, state in self._wiring.subscriptions.assigned.items():
            if state.refusal is not None and place not in leaderless:
                refused.setdefault(state.refusal, []).append(place)
        for refusal, places in refused.items():
            why = f"it responds with {refusal.name}"
            yield Cause(("refused", refusal.name), f"the leader of {names_of(places)}", why, frozenset(places))

    def _brokers(self, wanted: Collection[TopicPartition], steady_ms: int) -> Iterator[Cause]:
        """Leaders and a coordinator that are not connected, or do not respond."""
        needed: dict[Address, _Roles] = {}
        if self._needs_coordinator and self._group is not None:
            finder = self._group.finder
            known = finder.address_known or (finder.address_lost if self._wiring.coordinator_error is None else None)
            is_parked = self._group.membership.state is State.JOINING
            if known is not None and self._is_silent(known, steady_ms, is_parked=is_parked):
                needed.setdefault(known.first_lane, _Roles(known)).coordinates = True
        nodes = self._wiring.cluster.nodes.values()
        silent = {address for node in nodes for address in _lanes(node) if self._is_silent(address, steady_ms)}
        for place, lane in self._lanes_of(wanted) if silent else ():
            leader = self._wiring.cluster.leader_address(place)
            if leader is not None and (address := leader._replace(lane=lane)) in silent:
                needed.setdefault(leader, _Roles(address)).leads.append(place)
        for listener, roles in needed.items():
            since_ms = self.responses.since_ms(roles.address) or 0
            key, places = ("broker", str(listener)), frozenset(roles.leads)
            yield Cause(key, self._what(listener, roles), self._why(roles.address), places, roles.coordinates, since_ms=since_ms)

    def _lanes_of(self, wanted: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, int]]:
        """Partitions whose leader has to respond now, and over which connection."""
        states = self._wiring.subscriptions.assigned
        yield from ((place, LANE_FETCH if state.stage is Stage.READING else 0) for place, state in states.items() if _waits(state))
        yield from ((place, 0) for place in wanted if place not in states or not _waits(states[place]))

    def _is_silent(self, address: Address, steady_ms: int, *, is_parked: bool = False) -> bool:
        """`is_parked`: the broker may hold its response for as long as it likes. A connection that ended while nothing was asked for is no
        silence: the next request makes another one."""
        since_ms = self.responses.since_ms(address)
        if since_ms is None or not self.responses.is_connected(address):
            return since_ms is not None
        return not is_parked and steady_ms - since_ms > self._patience_ms(address)

    def _patience_ms(self, address: Address) -> int:
        return self._fetch_wait_ms if address.lane == LANE_FETCH else 0

    def _what(self, listener: Address, roles: _Roles) -> str:
        said = [f"coordinates group {self._wiring.group_id!r}"] if roles.coordinates else []
        said += [f"leads {names_of(roles.leads)}"] if roles.leads else []
        return f"{listener}, which {' and '.join(said)}"

    def _why(self, address: Address) -> str:
        if self.responses.is_connected(address):
            return "no response yet"
        attempts, listener = self._wiring.attempts, address.first_lane
        why = attempts.reason(address) or attempts.reason(listener)
        return why or with_advertised_hint("no connection yet", listener, self._wiring.bootstrap.servers)

    # The group.

    @property
    def _needs_coordinator(self) -> bool:
        return self._group is not None and (self._group.needs_coordinator)

    def _coordinator(self, steady_ms: int) -> Iterator[Cause]:
        assert self._group is not None, "only called where there is a group"
        probe = self._group.membership.probe
        error = self._wiring.coordinator_error or self._group.membership.refusal or self._group.commits.last_error
        if error is not None:
            yield Cause(("coordinator",), f"the coordinator of group {self._wiring.group_id!r}", in_words(error), is_of_group=True)
        elif probe.waits_since_ms is not None and self._group.membership.state is State.JOINING:
            until_ms = probe.waits_since_ms + int(self._wiring.settings["max.poll.interval.ms"])
            what = f"other members of group {self._wiring.group_id!r}"
            why = "the coordinator prepares a rebalance, and they have not joined again yet"
            since_ms, limit = probe.waits_since_ms, "max.poll.interval.ms"
            yield Cause(("members",), what, why, is_of_group=True, since_ms=since_ms, until_ms=until_ms, limit=limit)

    def report_not_left(self) -> None:
        """`close` has no time left, and LeaveGroup has no response."""
        waits = self._wiring.waits_for((), uses_group=True)
        session = f"session.timeout.ms, {self._wiring.settings['session.timeout.ms']} ms"
        text = f"close: the coordinator of group {self._wiring.group_id!r} has not confirmed LeaveGroup in time"
        self._wiring.report(f"{text}{waits and '; '}{waits}; if it did not receive it, the group removes the member after {session}")

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When a line is due, or a silence is long enough."""
        times = [self._log.due_ms(cause.key, cause.since_ms) for cause in self._wiring.causes]
        times += [since_ms + max(FIRST_LINE_MS, self._patience_ms(address) + 1) for address, since_ms in self.responses.owed()]
        return min((time_ms for time_ms in times if time_ms > steady_ms), default=None)


def _lanes(address: Address) -> list[Address]:
    return [address._replace(lane=lane) for lane in range(LANES)]


def _waits(state: PartitionState) -> bool:
    """Whether a response of the leader is needed now."""
    return state.is_usable and not state.is_paused and state.stage not in (Stage.COMMITTED, Stage.MISSING)
