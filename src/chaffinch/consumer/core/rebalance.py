"""What a rebalance means for the caller, step by step within its poll: commit what was read, give partitions up, take the new ones over.

The caller's callbacks run between the steps, on its own thread: `next_callback` says which one is due, `callback_done` that it has run.
Eager members give up everything before they join; cooperative ones keep reading, and give up afterwards what the group gave to others,
then join again (KIP-429). Follows onJoinPrepare and onJoinComplete of ConsumerCoordinator.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from chaffinch.consumer.core.commits import Commits
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.group_requests import NO_IDENTITY
from chaffinch.consumer.core.membership import Membership
from chaffinch.consumer.core.membership_moves import Happening, State
from chaffinch.consumer.core.offsets_asked import Commit
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition

Kind = Literal["assign", "revoke", "lost"]


@dataclass(frozen=True, slots=True, eq=False)
class Callback:
    """Tell the caller. `after` is done when it knows."""

    kind: Kind
    partitions: tuple[TopicPartition, ...]
    after: Callable[[], None]


class Rebalance:
    """The caller's half of a membership."""

    def __init__(self, wiring: Wiring, membership: Membership, commits: Commits, fetcher: Fetcher) -> None:
        self._wiring = wiring
        self._membership = membership
        self._commits = commits
        self._fetcher = fetcher
        self._callbacks: deque[Callback] = deque()
        self._commit: Commit | None = None
        self._committed_as = NO_IDENTITY
        """As whom what was read on was committed last."""

    def next_callback(self, steady_ms: int, *, knows_topics: bool) -> Callback | None:
        """Go on as far as possible without the caller; the callback it has to run next, or None. `knows_topics`: of a pattern."""
        while not self._callbacks:
            state = self._membership.state
            if state is State.STABLE and self._membership.joined_topics != self._wiring.subscriptions.topics:
                self._membership.rebalance("the subscription has changed")
            elif state is State.UNJOINED and knows_topics:
                self._membership.move(Happening.POLLED)
                self._commit_first(steady_ms)
            elif state is State.PREPARING and self._commit is None:
                self._give_up()
            elif state is State.ADOPTING and self._commit is None and not self._commit_gone(steady_ms):
                self._adopt()
            else:
                return None
        return self._callbacks[0]

    @property
    def is_committing(self) -> bool:
        """Whether what the caller has read is being committed, before partitions are given up."""
        return self._commit is not None

    def callback_done(self, callback: Callback) -> None:
        """The callback that was next has run; unless it has made an end of all this itself."""
        if self._callbacks and self._callbacks[0] is callback:
            self._callbacks.popleft().after()

    def leaving(self) -> Callback | None:
        """What to tell the caller before it leaves the group."""
        self._callbacks.clear()
        partitions = tuple(sorted(self._wiring.subscriptions.assigned))
        return Callback(self._ending, partitions, lambda: None) if partitions else None

    @property
    def _ending(self) -> Kind:
        return "revoke" if self._membership.identity.has_generation else "lost"

    # Before joining.

    def _commit_first(self, steady_ms: int) -> None:
        if not self._commits.is_automatic or not self._membership.identity.has_generation:
            return
        deadline_ms = steady_ms + int(self._wiring.settings["max.poll.interval.ms"])
        self._commit = self._commits.commit_all(deadline_ms, self._committed, retries=True)

    def _committed(self, error: KafkaException | None) -> None:
        self._commit = None
        if error is not None:
            self._wiring.report(f"group {self._wiring.group_id!r}: offsets were not committed before the rebalance: {error}")

    def _give_up(self) -> None:
        assigned = self._wiring.subscriptions.assigned
        if not self._membership.is_cooperative or not self._membership.identity.has_generation:
            gone = tuple(sorted(assigned))
        else:
            gone = tuple(sorted(place for place in assigned if place.topic not in self._wiring.subscriptions.topics))
        if self._ending == "lost" and gone:
            self._wiring.counts["assignments_lost"] += 1
        self._tell(self._ending, gone, lambda: self._drop(gone))
        self._then(lambda: self._move_from(State.PREPARING, Happening.PREPARED))

    # After syncing.

    def _commit_gone(self, steady_ms: int) -> bool:
        """Begin to commit what was read on, while others joined, of partitions that they get now: whether that is to be waited for."""
        membership = self._membership
        gone = self._wiring.subscriptions.assigned.keys() - set(membership.assignment)
        if not self._commits.is_automatic or not gone or self._committed_as == membership.identity:
            return False
        self._committed_as = membership.identity
        deadline_ms = steady_ms + int(self._wiring.settings["max.poll.interval.ms"])
        self._commit = self._commits.commit_all(deadline_ms, self._committed, retries=True, places=gone)
        return self._commit is not None

    def _adopt(self) -> None:
        membership, subscriptions = self._membership, self._wiring.subscriptions
        given = membership.assignment
        if any(place.topic not in membership.joined_topics for place in given):
            # The leader knew of an older subscription than the one joined with: that cannot be taken over.
            membership.move(Happening.ADOPTED)
            membership.rebalance("the assignment does not fit the subscription")
            return
        membership.identity_of_caller = membership.identity
        gone = tuple(sorted(subscriptions.assigned.keys() - set(given)))
        added = tuple(sorted(set(given) - subscriptions.assigned.keys()))
        self._tell("revoke", gone, lambda: self._drop(gone))
        self._then(lambda: self._take_over(given, added))
        self._callbacks.append(Callback("assign", added, lambda: self._adopted(added, gave_up=bool(gone))))

    def _take_over(self, given: Iterable[TopicPartition], added: Iterable[TopicPartition]) -> None:
        self._wiring.subscriptions.assign(sorted(given))
        for place in added:
            self._wiring.subscriptions.assigned[place].is_usable = False

    def _adopted(self, added: Iterable[TopicPartition], *, gave_up: bool) -> None:
        for place in added:
            state = self._wiring.subscriptions.assigned.get(place)
            if state is not None:
                state.is_usable = True
        self._move_from(State.ADOPTING, Happening.ADOPTED)
        if gave_up and self._membership.state is State.STABLE:
            self._membership.rebalance("partitions were given up for others")

    # Steps.

    def _tell(self, kind: Kind, partitions: tuple[TopicPartition, ...], after: Callable[[], None]) -> None:
        if partitions:
            self._callbacks.append(Callback(kind, partitions, after))

    def _then(self, step: Callable[[], None]) -> None:
        """Do it when the callbacks before it have run; at once if there are none."""
        if not self._callbacks:
            step()
            return
        last = self._callbacks.pop()

        def both() -> None:
            last.after()
            step()

        self._callbacks.append(Callback(last.kind, last.partitions, both))

    def _move_from(self, state: State, happening: Happening) -> None:
        """Unless the group has gone on meanwhile: then the next round tells."""
        if self._membership.state is state:
            self._membership.move(happening)

    def _drop(self, gone: Iterable[TopicPartition]) -> None:
        for place in gone:
            self._fetcher.drop(place)
            self._wiring.subscriptions.assigned.pop(place, None)
