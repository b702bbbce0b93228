"""The parts that a consumer with a group.id has: the coordinator, the membership, commits and the rebalance."""

from __future__ import annotations

from collections.abc import Callable

from chaffinch.consumer.core.absences import Absences
from chaffinch.consumer.core.commits import Commits
from chaffinch.consumer.core.coordinator import CoordinatorFinder
from chaffinch.consumer.core.fetcher import Fetcher
from chaffinch.consumer.core.membership import Membership
from chaffinch.consumer.core.rebalance import Rebalance
from chaffinch.consumer.core.reset_policy import ResetPolicy
from chaffinch.consumer.core.topic_watch import TopicWatch
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import KafkaException


class Group:
    """The parts that a consumer with a group.id has."""

    def __init__(
        self,
        wiring: Wiring,
        watch: TopicWatch,
        absences: Absences,
        fetcher: Fetcher,
        resets: ResetPolicy,
        unreachable: Callable[..., KafkaException],
    ) -> None:
        self.finder = CoordinatorFinder(wiring, wiring.settings["group.id"])
        self.membership = Membership(wiring, self.finder)
        self.commits = Commits(wiring, self.membership, self.finder, watch, absences, resets, unreachable)
        self.rebalance = Rebalance(wiring, self.membership, self.commits, fetcher)
