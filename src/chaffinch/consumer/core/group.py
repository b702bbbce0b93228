"""What a consumer with a group.id has: the coordinator, the membership, commits and the rebalance; and which of them an answer is for."""

from __future__ import annotations

from collections.abc import Iterator

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.consumer.core.absences import Absences
from chaffinch.consumer.core.call_errors import network_error
from chaffinch.consumer.core.commits import Commits
from chaffinch.consumer.core.coordinator import CoordinatorAsked
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.join_checks import GroupKindAsked, JoinProbed
from chaffinch.consumer.core.membership import GroupAsked, LeaveSent, Membership
from chaffinch.consumer.core.offsets_asked import CommitSent, Lookup, TopicsAsked
from chaffinch.consumer.core.rebalance import Rebalance
from chaffinch.consumer.core.reset_policy import ResetPolicy
from chaffinch.consumer.core.wiring import Wiring


class Group:
    """The parts of one group's member. A consumer that assigns partitions itself has them for its commits."""

    def __init__(self, wiring: Wiring, absences: Absences, fetcher: Fetcher, resets: ResetPolicy) -> None:
        self.membership = Membership(wiring)
        self.finder = self.membership.finder
        self.commits = Commits(wiring, self.membership, absences, resets)
        self.rebalance = Rebalance(wiring, self.membership, self.commits, fetcher)

    @property
    def needs_coordinator(self) -> bool:
        return self.membership.is_active or self.commits.is_busy

    def answered(self, event: ResponseReceived, steady_ms: int) -> None:
        membership, commits, token = self.membership, self.commits, event.token
        match token:
            case CoordinatorAsked():
                self.finder.answered(event.message, steady_ms)
            case GroupAsked():
                membership.answered(token, event, steady_ms)
            case JoinProbed():
                membership.probe.answered(event, steady_ms)
            case LeaveSent():
                membership.departure.ended(token)
            case GroupKindAsked():
                membership.refused_join.answered(event)
            case CommitSent():
                commits.commit_answered(event, steady_ms)
            case TopicsAsked():
                commits.topics_answered(event)
            case _:
                assert isinstance(token, Lookup), f"an answer to nothing: {event}"
                commits.committed.answered(event, steady_ms)

    def failed(self, event: RequestFailed, steady_ms: int) -> None:
        """No answer: it is asked for again. That the connection is gone, and the coordinator perhaps with it, comes by `lost`."""
        membership, commits, token = self.membership, self.commits, event.token
        match token:
            case CoordinatorAsked():
                self.finder.unanswered(network_error(event), steady_ms)
            case GroupAsked():
                membership.failed(token, event, steady_ms)
            case JoinProbed():
                membership.probe.failed(token, steady_ms, is_unsupported=event.is_unsupported)
            case LeaveSent():
                membership.departure.ended(token)
            case GroupKindAsked():
                membership.refused_join.ended(token)
            case CommitSent() | TopicsAsked():
                commits.commit_failed(token, event, steady_ms)
            case _:
                assert isinstance(token, Lookup), f"a failure of nothing: {event}"
                commits.committed.failed(token, event, steady_ms)

    def lost(self, address: Address) -> None:
        """A connection is gone."""
        self.finder.lost(address)
        self.commits.lost(address)

    def advance(self, steady_ms: int) -> None:
        """Send what is due."""
        if self.needs_coordinator:
            self.finder.advance(steady_ms)
        self.membership.advance(steady_ms)
        self.commits.advance(steady_ms)
        if self.needs_coordinator:
            self.finder.advance(steady_ms)

    def deadlines_ms(self, steady_ms: int) -> Iterator[int | None]:
        """When something is due."""
        yield self.membership.next_deadline_ms(steady_ms)
        yield self.commits.next_deadline_ms(steady_ms)
        if self.needs_coordinator:
            yield self.finder.next_deadline_ms(steady_ms)
