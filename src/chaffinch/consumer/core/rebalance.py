"""Rebalance steps within the caller's poll: commit what was read, revoke partitions, adopt the new assignment.

The caller's callbacks run between the steps, on its own thread: `next_callback` returns the one that is due, `callback_done` reports that
it has run. Eager members revoke all partitions before they join. Cooperative members keep reading; afterwards they revoke the partitions
that the group assigned to others, then join again (KIP-429). Follows onJoinPrepare and onJoinComplete of ConsumerCoordinator.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from chaffinch.consumer.core.commits import Commits
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.group_requests import NO_IDENTITY
from chaffinch.consumer.core.membership import Membership
from chaffinch.consumer.core.membership_states import MembershipEvent, State
from chaffinch.consumer.core.pending_offsets import Commit
from chaffinch.errors import KafkaException
from chaffinch.identifiers import TopicPartition

Kind = Literal["assign", "revoke", "lost"]


@dataclass(frozen=True, slots=True, eq=False)
class Callback:
    """A callback that is due. `after` runs when it is done."""

    kind: Kind
    partitions: tuple[TopicPartition, ...]
    after: Callable[[], None]


class Rebalance:
    """The caller's part of a membership."""

    def __init__(self, context: ConsumerContext, membership: Membership, commits: Commits, fetcher: Fetcher) -> None:
        self._context = context
        self._membership = membership
        self._commits = commits
        self._fetcher = fetcher
        self._callbacks: deque[Callback] = deque()
        self._commit: Commit | None = None
        self._committed_as = NO_IDENTITY
        """Identity with which records read during a rebalance were last committed."""

    def next_callback(self, steady_ms: int, *, has_topics: bool) -> Callback | None:
        """Proceed as far as possible without the caller; the callback that is due, or None.

        `has_topics`: whether the topics of a pattern are known.
        """
        while not self._callbacks:
            state = self._membership.state
            if state is State.STABLE and self._membership.joined_topics != self._context.subscriptions.topics:
                self._membership.request_rejoin("the subscription has changed")
            elif state is State.UNJOINED and has_topics:
                self._membership.transition(MembershipEvent.POLLED)
                self._commit_before_join(steady_ms)
            elif state is State.PREPARING and self._commit is None:
                self._revoke()
            elif state is State.ADOPTING and self._commit is None and not self._commit_revoked(steady_ms):
                self._adopt()
            else:
                return None
        return self._callbacks[0]

    @property
    def is_committing(self) -> bool:
        """Whether the positions are being committed, before partitions are revoked."""
        return self._commit is not None

    def callback_done(self, callback: Callback) -> None:
        """The callback that was due has run, unless it has itself ended the subscription."""
        if self._callbacks and self._callbacks[0] is callback:
            self._callbacks.popleft().after()

    def leave_callback(self) -> Callback | None:
        """The callback to run before the member leaves the group."""
        self._callbacks.clear()
        partitions = tuple(sorted(self._context.subscriptions.assigned))
        return Callback(self._revoke_kind, partitions, lambda: None) if partitions else None

    @property
    def _revoke_kind(self) -> Kind:
        return "revoke" if self._membership.identity.has_generation else "lost"

    # Before joining.

    def _commit_before_join(self, steady_ms: int) -> None:
        if not self._commits.is_automatic or not self._membership.identity.has_generation:
            return
        deadline_ms = steady_ms + int(self._context.settings["max.poll.interval.ms"])
        self._commit = self._commits.commit_all(deadline_ms, self._committed, retries=True)

    def _committed(self, error: KafkaException | None) -> None:
        self._commit = None
        if error is not None:
            self._context.report(f"group {self._context.group_id!r}: offsets were not committed before the rebalance: {error}")

    def _revoke(self) -> None:
        assigned = self._context.subscriptions.assigned
        if not self._membership.is_cooperative or not self._membership.identity.has_generation:
            revoked = tuple(sorted(assigned))
        else:
            revoked = tuple(sorted(tp for tp in assigned if tp.topic not in self._context.subscriptions.topics))
        if self._revoke_kind == "lost" and revoked:
            self._context.counts["assignments_lost"] += 1
        self._add_callback(self._revoke_kind, revoked, lambda: self._drop(revoked))
        self._then(lambda: self._transition_from(State.PREPARING, MembershipEvent.PREPARED))

    # After syncing.

    def _commit_revoked(self, steady_ms: int) -> bool:
        """Start to commit records read during the rebalance, of partitions that other members get; returns whether to wait."""
        membership = self._membership
        revoked = self._context.subscriptions.assigned.keys() - set(membership.assignment)
        if not self._commits.is_automatic or not revoked or self._committed_as == membership.identity:
            return False
        self._committed_as = membership.identity
        deadline_ms = steady_ms + int(self._context.settings["max.poll.interval.ms"])
        self._commit = self._commits.commit_all(deadline_ms, self._committed, retries=True, tps=revoked)
        return self._commit is not None

    def _adopt(self) -> None:
        membership, subscriptions = self._membership, self._context.subscriptions
        assignment = membership.assignment
        if any(tp.topic not in membership.joined_topics for tp in assignment):
            # The leader used an older subscription than the one joined with: its assignment cannot be adopted.
            membership.transition(MembershipEvent.ADOPTED)
            membership.request_rejoin("the assignment does not fit the subscription")
            return
        membership.caller_identity = membership.identity
        revoked = tuple(sorted(subscriptions.assigned.keys() - set(assignment)))
        added = tuple(sorted(set(assignment) - subscriptions.assigned.keys()))
        self._add_callback("revoke", revoked, lambda: self._drop(revoked))
        self._then(lambda: self._assign(assignment, added))
        self._callbacks.append(Callback("assign", added, lambda: self._adopted(added, gave_up=bool(revoked))))

    def _assign(self, assignment: Iterable[TopicPartition], added: Iterable[TopicPartition]) -> None:
        self._context.subscriptions.assign(sorted(assignment))
        for tp in added:
            self._context.subscriptions.assigned[tp].is_usable = False

    def _adopted(self, added: Iterable[TopicPartition], *, gave_up: bool) -> None:
        for tp in added:
            state = self._context.subscriptions.assigned.get(tp)
            if state is not None:
                state.is_usable = True
        self._transition_from(State.ADOPTING, MembershipEvent.ADOPTED)
        if gave_up and self._membership.state is State.STABLE:
            self._membership.request_rejoin("partitions were revoked for other members")

    # Steps.

    def _add_callback(self, kind: Kind, partitions: tuple[TopicPartition, ...], after: Callable[[], None]) -> None:
        if partitions:
            self._callbacks.append(Callback(kind, partitions, after))

    def _then(self, step: Callable[[], None]) -> None:
        """Run this step after the callbacks before it; at once if there are none."""
        if not self._callbacks:
            step()
            return
        last = self._callbacks.pop()

        def both() -> None:
            last.after()
            step()

        self._callbacks.append(Callback(last.kind, last.partitions, both))

    def _transition_from(self, state: State, event: MembershipEvent) -> None:
        """Make the transition, unless the state has changed in the meantime: then the next rebalance decides."""
        if self._membership.state is state:
            self._membership.transition(event)

    def _drop(self, revoked: Iterable[TopicPartition]) -> None:
        for tp in revoked:
            self._fetcher.drop(tp)
            self._context.subscriptions.assigned.pop(tp, None)
