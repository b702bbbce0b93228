"""Group: the coordinator finder, membership, commits and rebalance of a consumer with a group.id. Dispatches responses to them."""

from __future__ import annotations

from collections.abc import Iterator

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.consumer.core.call_errors import network_error
from chaffinch.consumer.core.commits import Commits
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.coordinator import CoordinatorToken
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.join_checks import GroupKindToken, JoinProbeToken
from chaffinch.consumer.core.membership import LeaveToken, Membership, MemberToken
from chaffinch.consumer.core.missing_partitions import MissingPartitions
from chaffinch.consumer.core.pending_offsets import CommitToken, Lookup, TopicsToken
from chaffinch.consumer.core.rebalance import Rebalance
from chaffinch.consumer.core.reset_policy import ResetPolicy


class Group:
    """The parts of one group member. A consumer with assigned partitions uses them for commits."""

    def __init__(self, context: ConsumerContext, missing_partitions: MissingPartitions, fetcher: Fetcher, resets: ResetPolicy) -> None:
        self.membership = Membership(context)
        self.finder = self.membership.finder
        self.commits = Commits(context, self.membership, missing_partitions, resets)
        self.rebalance = Rebalance(context, self.membership, self.commits, fetcher)

    @property
    def needs_coordinator(self) -> bool:
        return self.membership.is_active or self.commits.is_busy

    def response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        membership, commits, token = self.membership, self.commits, event.token
        match token:
            case CoordinatorToken():
                self.finder.response_received(event.message, steady_ms)
            case MemberToken():
                membership.response_received(token, event, steady_ms)
            case JoinProbeToken():
                membership.probe.response_received(event, steady_ms)
            case LeaveToken():
                membership.pending_leave.ended(token)
            case GroupKindToken():
                membership.refused_join.response_received(event)
            case CommitToken():
                commits.commit_response_received(event, steady_ms)
            case TopicsToken():
                commits.topics_response_received(event)
            case _:
                assert isinstance(token, Lookup), f"a response without a request: {event}"
                commits.committed.response_received(event, steady_ms)

    def request_failed(self, event: RequestFailed, steady_ms: int) -> None:
        """No response: the part sends the request again. The end of the connection is reported by `connection_lost`."""
        membership, commits, token = self.membership, self.commits, event.token
        match token:
            case CoordinatorToken():
                self.finder.request_failed(network_error(event), steady_ms)
            case MemberToken():
                membership.request_failed(token, event, steady_ms)
            case JoinProbeToken():
                membership.probe.request_failed(token, steady_ms, is_unsupported=event.is_unsupported)
            case LeaveToken():
                membership.pending_leave.ended(token)
            case GroupKindToken():
                membership.refused_join.ended(token)
            case CommitToken() | TopicsToken():
                commits.commit_request_failed(token, event, steady_ms)
            case _:
                assert isinstance(token, Lookup), f"a failure without a request: {event}"
                commits.committed.request_failed(token, event, steady_ms)

    def connection_lost(self, address: Address) -> None:
        """A connection has ended."""
        self.finder.connection_lost(address)
        self.commits.connection_lost(address)

    def advance(self, steady_ms: int) -> None:
        """Send requests that are due."""
        if self.needs_coordinator:
            self.finder.advance(steady_ms)
        self.membership.advance(steady_ms)
        self.commits.advance(steady_ms)
        if self.needs_coordinator:
            self.finder.advance(steady_ms)

    def deadlines_ms(self, steady_ms: int) -> Iterator[int | None]:
        """Times at which something is due."""
        yield self.membership.next_deadline_ms(steady_ms)
        yield self.commits.next_deadline_ms(steady_ms)
        if self.needs_coordinator:
            yield self.finder.next_deadline_ms(steady_ms)
