"""Committed offsets: writing them (OffsetCommit), by the caller's word or by themselves, and looking them up (OffsetFetch).

Follows ConsumerCoordinator.java: a commit that waits is tried again until its time is over, one that does not is tried once; a member
that the group has gone on without cannot commit, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from chaffinch.client.connections import Answered, Failed
from chaffinch.consumer.core import group_requests
from chaffinch.consumer.core.absences import ABSENT_MS, Absences
from chaffinch.consumer.core.commit_refusals import expelled, no_member_yet, not_a_member, rebalancing, too_long
from chaffinch.consumer.core.coordinator import CoordinatorFinder
from chaffinch.consumer.core.effects import CompleteCall, FailCall
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.consumer.core.late import IN_TIME, names_of, within
from chaffinch.consumer.core.membership import COORDINATOR_GONE, OUT_OF_GROUP, Membership
from chaffinch.consumer.core.membership_moves import State
from chaffinch.consumer.core.offsets_asked import Commit, CommitSent, Lookup, Outcome
from chaffinch.consumer.core.options import ResetStrategy, commits_itself
from chaffinch.consumer.core.positions import Position, Stage, Subscriptions
from chaffinch.consumer.core.topic_watch import TopicWatch
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import (
    ErrorCode,
    KafkaException,
    NetworkException,
    Stored,
    UnsupportedVersionException,
    codes,
    exception_for,
)
from chaffinch.errors.again import again
from chaffinch.identifiers import NO_OFFSET, OffsetAndMetadata, TopicPartition

AGAIN: Final = frozenset({codes.COORDINATOR_LOAD_IN_PROGRESS, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNSTABLE_OFFSET_COMMIT})
API_TIMEOUT: Final = "default.api.timeout.ms"
OVERTAKEN: Final = frozenset({codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS})
ELSEWHERE: Final = COORDINATOR_GONE | {codes.REQUEST_TIMED_OUT}


class Commits:
    """The offsets of one group. Without a group nothing is here."""

    def __init__(
        self,
        wiring: Wiring,
        subscriptions: Subscriptions,
        membership: Membership,
        finder: CoordinatorFinder,
        watch: TopicWatch,
        absences: Absences,
        reset_strategy: ResetStrategy,
        fail: Callable[[KafkaException], None],
        unreachable: Callable[..., KafkaException],
    ) -> None:
        """`unreachable` makes the error of a call whose time is over."""
        self.is_automatic = commits_itself(wiring.settings)
        self._wiring = wiring
        self._subscriptions = subscriptions
        self._membership = membership
        self._finder = finder
        self._watch = watch
        self._absences = absences
        self._reset_strategy = reset_strategy
        self._fail = fail
        self._unreachable = unreachable
        self._commits: list[Commit] = []
        self._lookups: list[Lookup] = []
        self._positions_asked: Lookup | None = None
        self._requires_stable = True
        self._auto_due_ms = 0
        self._auto: Commit | None = None
        self._gone: set[TopicPartition] = set()
        """Those that the coordinator did not know, and metadata did not either then."""

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator is needed."""
        return bool(self._commits or self._lookups)

    @property
    def topics(self) -> set[str]:
        """Those of which the coordinator says that it does not know a partition: metadata says why."""
        return {place.topic for commit in self._commits if commit.unknown_since_ms is not None for place in commit.offsets}

    @property
    def is_committing(self) -> bool:
        """Whether offsets are on their way to the coordinator."""
        return bool(self._commits)

    # Writing.

    def commit_all(
        self, deadline_ms: int, done: Outcome, *, retries: bool, places: Collection[TopicPartition] | None = None, limit: str = IN_TIME
    ) -> Commit | None:
        """Commit what was read, of all partitions or of `places`; as `commit`. But not where metadata has no such partition, which may be
        the word of a broker that lags behind, and the coordinator has said so, too."""
        if retries:
            self._supersede()
        self._gone = {place for place in self._gone if self._wiring.cluster.partition(place) is None}
        found = self.positions().items()
        offsets = {place: offset for place, offset in found if place not in self._gone and (places is None or place in places)}
        return self.commit(offsets, deadline_ms, done, retries=retries, is_automatic=True, limit=limit)

    def _supersede(self) -> None:
        """A commit of the moment that still waits for the coordinator says less than the one that comes now, and would come after it."""
        if self._auto is not None and not self._auto.is_under_way:
            self._commits.remove(self._auto)
            self._auto, self._auto_due_ms = None, 0

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline_ms: int,
        done: Outcome,
        *,
        retries: bool,
        is_automatic: bool = False,
        limit: str = IN_TIME,
    ) -> Commit | None:
        """Begin to commit; None when it was over at once."""
        refusal = self._refusal(is_empty=not offsets, is_automatic=is_automatic)
        if refusal is not None or not offsets:
            done(refusal)
            return None
        found = Commit(offsets, deadline_ms, retries, done, self._identity, is_automatic, limit=limit)
        self._commits.append(found)
        return found

    def _refusal(self, *, is_empty: bool, is_automatic: bool) -> KafkaException | None:
        """Why this consumer cannot commit now. What it commits by itself while it joins is the last, before it leaves: see `advance`."""
        membership = self._membership
        if membership.fatal is not None and not (is_empty and is_automatic):
            return again(membership.fatal)  # Also of what it has read, which is nothing any more: who asks believes it is committed.
        if is_empty:
            return None
        # Who joins is about to be of another generation, which may come before the commit does.
        is_joining = membership.state in (State.JOINING, State.SYNCING)
        if not self._subscriptions.is_automatic or (membership.identity.has_generation and (is_automatic or not is_joining)):
            return None
        if is_joining and not membership.identity.has_generation and self._finder.address_known is None:
            return None  # There is no group yet that could rebalance. It waits until there is, see `_refuse`, or its time is over.
        if is_joining:
            return rebalancing(membership)
        return no_member_yet(membership.group_id) if membership.identity_of_caller == NO_IDENTITY else expelled(membership.group_id)

    @property
    def _identity(self) -> Identity:
        return self._membership.identity if self._subscriptions.is_automatic else NO_IDENTITY

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the caller has read up to."""
        consumed = self._subscriptions.consumed().items()
        return {place: OffsetAndMetadata(position.offset, "", position.offset_epoch) for place, position in consumed}

    def polled(self, now_ms: int) -> None:
        """The caller polls again, so what it had is done with: commit it when it is time to."""
        if self.is_automatic and self._auto is None and now_ms >= self._auto_due_ms and self._may_commit_itself:
            self._auto_due_ms = now_ms + int(self._wiring.settings["auto.commit.interval.ms"])
            time_ms = int(self._wiring.settings[API_TIMEOUT])
            limit = within(time_ms, API_TIMEOUT)
            self._auto = self.commit_all(now_ms + time_ms, self._auto_done, retries=False, limit=limit)

    @property
    def _may_commit_itself(self) -> bool:
        return not self._subscriptions.is_automatic or self._membership.state is State.STABLE

    def _auto_done(self, error: KafkaException | None) -> None:
        self._auto = None
        if error is not None:
            self._wiring.report(f"group {self._membership.group_id!r}: offsets were not committed, the next poll tries again: {error}")
            self._auto_due_ms = 0 if error.code.is_retriable else self._auto_due_ms

    # Looking up.

    def look_up(self, places: Collection[TopicPartition], deadline_ms: int, call: Any, limit: str = IN_TIME) -> None:
        """Committed offsets for a caller: a mapping with None where there is none."""
        self._lookups.append(Lookup(tuple(places), deadline_ms, call, limit))

    def _want_positions(self, now_ms: int) -> None:
        if self._positions_asked is None:
            places = tuple(state.place for state in self._subscriptions.at(Stage.COMMITTED, now_ms))
            if places:
                self._positions_asked = Lookup(places)
                self._lookups.append(self._positions_asked)

    # The round.

    def advance(self, now_ms: int) -> None:
        if self.is_busy:
            self._expire(now_ms)
            self._follow()
        self._want_positions(now_ms)
        address = self._finder.address(now_ms)
        if address is None:
            return
        self._refuse()
        membership = self._membership
        # Until all have joined the coordinator takes commits of the generation before, but not behind a JoinGroup, which waits for that;
        # and none from then on until all have synced.
        address_of_commits = address.first_lane if membership.state is State.JOINING else address
        for commit in list(self._commits) if membership.state is not State.SYNCING else ():
            if not commit.is_under_way and now_ms >= commit.not_before_ms and not (commit.failures and self._is_followed(commit)):
                self._send_commit(commit, address_of_commits)
        for lookup in self._lookups:
            if not lookup.is_under_way and now_ms >= lookup.not_before_ms:
                lookup.is_under_way = True
                request = group_requests.offset_fetch(membership.group_id, lookup.places, require_stable=self._requires_stable)
                self._wiring.send(address, request, lookup)

    def _is_followed(self, commit: Commit) -> bool:
        """Whether a later one tells of some of its partitions: that is waited for, lest this one takes the group back."""
        later = self._commits[self._commits.index(commit) + 1 :]
        return any(not commit.offsets.keys().isdisjoint(other.offsets) for other in later)

    def _send_commit(self, commit: Commit, address: Any) -> None:
        offsets = {place: offset for place, offset in commit.offsets.items() if place not in commit.left_out}
        if not offsets:
            self._end(commit, commit.shortfall)
            return
        commit.is_under_way = True
        self._wiring.counts["commits_sent"] += 1
        membership = self._membership
        instance_id = membership.instance_id if commit.identity.has_generation else None
        message = group_requests.commit(membership.group_id, commit.identity, instance_id, offsets)
        self._wiring.send(address, message, CommitSent(commit, commit.identity))

    def _refuse(self) -> None:
        """What was asked for while nobody had told where the coordinator is, by who was no member: nor is it one now."""
        for commit in [found for found in self._commits if not (found.is_under_way or found.identity.has_generation)]:
            refusal = self._refusal(is_empty=False, is_automatic=commit.is_automatic)
            if refusal is not None:
                self._end(commit, refusal)

    def _follow(self) -> None:
        """What a cooperative member that closes has read goes with it into the generation that it joins meanwhile. Nothing else does, nor
        where the group has gone on without it: others may have read and committed further since."""
        for commit in [found for found in self._commits if not found.is_under_way and found.identity != self._identity]:
            if commit.is_last and commit.identity == self._membership.joined_from:
                commit.identity = self._identity
            else:
                fatal = self._membership.fatal
                self._end(commit, expelled(self._membership.group_id) if fatal is None else again(fatal))

    def _expire(self, now_ms: int) -> None:
        for commit in [found for found in self._commits if now_ms >= found.deadline_ms]:
            missing = names_of(commit.offsets.keys() - commit.committed)
            text = f"group {self._membership.group_id!r}: offsets of {missing} were not committed {commit.limit}"
            text += self._silent() if commit.is_under_way else ""
            self._end(commit, self._unreachable(text, commit.last_error, api="OffsetCommit", stored=Stored.POSSIBLY))
        for lookup in [found for found in self._lookups if found.deadline_ms is not None and now_ms >= found.deadline_ms]:
            self._lookups.remove(lookup)
            text = f"the committed offsets of {names_of(lookup.places)} were not told {lookup.limit}"
            text += self._rebalancing() or (self._silent() if lookup.is_under_way else "")
            error = self._unreachable(f"group {self._membership.group_id!r}: {text}", lookup.last_error, api="OffsetFetch")
            self._wiring.out.append(FailCall(call=lookup.call, error=error))

    def _silent(self) -> str:
        """In words, of a request that is under way."""
        address = self._finder.address_known
        return "" if address is None else f", the coordinator {address} has not answered yet"

    def _rebalancing(self) -> str:
        """In words: the coordinator answers a connection's requests in turn, and those of a rebalance at its end."""
        if self._membership.state not in (State.JOINING, State.SYNCING) or self._finder.address_known is None:
            return ""
        return ": the group rebalances, and its coordinator answers when that is over: poll until partitions are assigned"

    def give_up(self, error: KafkaException) -> None:
        """Nobody will hear any more."""
        for commit in list(self._commits):
            self._end(commit, error)
        self._wiring.out += [FailCall(call=lookup.call, error=error) for lookup in self._lookups if lookup.call is not None]
        self._lookups = [lookup for lookup in self._lookups if lookup.call is None]

    def _end(self, commit: Commit, error: KafkaException | None) -> None:
        if commit in self._commits:
            self._commits.remove(commit)
            self._wiring.counts["commits_failed"] += error is not None
            commit.done(None if error is None else commit.told(error))
            self._wiring.wake()

    # Answers.

    def commit_answered(self, event: Answered, now_ms: int) -> None:
        token: CommitSent = event.token
        token.commit.is_under_way = False
        error: KafkaException | None = None
        for topic in event.message.topics:
            for found in topic.partitions:
                place = TopicPartition(topic.name, found.partition_index)
                code = codes.by_number(found.error_code, numbering=event.numbering)
                if code is codes.NONE:
                    self._taken(token.commit, place)
                    continue
                if code is codes.UNKNOWN_TOPIC_OR_PARTITION and token.commit.is_automatic:
                    self._leave_out(token, place, code)
                    continue
                if code in OVERTAKEN and self._is_overtaken(token):
                    self._try_again(token.commit, exception_for(code, stored=Stored.NO, api="OffsetCommit"), now_ms)
                    return
                if error is None or error.code.is_retriable:
                    error = self._commit_error(code, place, token)
        if error is None or token.commit.committed >= token.commit.offsets.keys():  # Each in one attempt or another.
            self._end(token.commit, token.commit.shortfall)
        else:
            self._commit_failed(token.commit, error, now_ms)

    def _taken(self, commit: Commit, place: TopicPartition) -> None:
        commit.committed.add(place)
        for earlier in self._commits[: self._commits.index(commit)] if commit in self._commits else ():
            earlier.left_out.add(place)

    def _leave_out(self, token: CommitSent, place: TopicPartition, code: ErrorCode) -> None:
        """Of an automatic commit, which does not wait for what the coordinator does not know; the others are committed all the same."""
        token.commit.left_out.add(place)
        token.commit.unknown = self._commit_error(code, place, token)
        self._gone.add(place)
        self._watch.refresh()

    def _is_overtaken(self, token: CommitSent) -> bool:
        """Whether a last commit came after the start of a generation that this member is in, or hears of in a moment: see `_follow`."""
        membership = self._membership
        joins = membership.state is State.JOINING and token.identity == membership.identity
        return token.commit.is_last and (joins or token.identity == membership.joined_from)

    def _commit_error(self, code: ErrorCode, place: TopicPartition, token: CommitSent) -> KafkaException:
        membership = self._membership
        is_present = token.identity == membership.identity
        if code in OUT_OF_GROUP:
            if not token.identity.has_generation:
                return not_a_member(membership.group_id)
            if is_present and membership.state is not State.JOINING:  # There the answer to JoinGroup tells what has become of it.
                membership.lose(f"a commit was answered with {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
            return expelled(membership.group_id)
        text = too_long(token.commit.offsets.get(place)) if code is codes.OFFSET_METADATA_TOO_LARGE else None
        error = exception_for(code, message=text, topic_partition=place, stored=Stored.NO, api="OffsetCommit")
        if code is codes.FENCED_INSTANCE_ID and is_present:
            membership.fenced(error)
        elif code is codes.REBALANCE_IN_PROGRESS:
            if is_present and membership.state is State.STABLE:
                membership.rebalance("the group is rebalancing")
            return rebalancing(membership, place)
        elif code in ELSEWHERE:
            self._finder.forget()
        return error

    def commit_failed(self, token: CommitSent, event: Failed, now_ms: int) -> None:
        token.commit.is_under_way = False
        self._commit_failed(token.commit, _lost(event, "OffsetCommit"), now_ms)

    def _commit_failed(self, commit: Commit, error: KafkaException, now_ms: int) -> None:
        is_unknown = error.code is codes.UNKNOWN_TOPIC_OR_PARTITION
        if not is_unknown:
            commit.unknown_since_ms = None
        elif commit.unknown_since_ms is None:
            commit.unknown_since_ms = now_ms
        has_waited = commit.unknown_since_ms is not None and now_ms - commit.unknown_since_ms >= ABSENT_MS
        is_gone = is_unknown and has_waited
        if is_unknown:
            self._watch.refresh()
        if has_waited and error.topic_partition is not None and (text := self._absences.text(error.topic_partition)) is not None:
            error = exception_for(error.code, message=text, topic_partition=error.topic_partition, stored=Stored.NO, api="OffsetCommit")
        if not commit.retries or is_gone or not (error.code.is_retriable or error.code in ELSEWHERE):
            self._end(commit, error)
        else:
            self._try_again(commit, error, now_ms)

    def _try_again(self, commit: Commit, error: KafkaException, now_ms: int) -> None:
        commit.failures += 1
        commit.last_error = error
        commit.not_before_ms = now_ms + self._wiring.wait_ms(commit.failures)

    def lookup_answered(self, event: Answered, now_ms: int) -> None:
        lookup: Lookup = event.token
        lookup.is_under_way = False
        answer = event.message
        group = answer.groups[0] if answer.groups else answer
        code = codes.by_number(group.error_code, numbering=event.numbering)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(lookup.places)
        for topic in group.topics:
            for told in topic.partitions:
                if told.error_code and code is codes.NONE:
                    code = codes.by_number(told.error_code, numbering=event.numbering)
                if told.committed_offset != NO_OFFSET:
                    committed = OffsetAndMetadata(told.committed_offset, told.metadata or "", told.committed_leader_epoch)
                    found[TopicPartition(topic.name, told.partition_index)] = committed
        if code is not codes.NONE:
            self._lookup_failed(lookup, exception_for(code, api="OffsetFetch"), now_ms)
            return
        if lookup not in self._lookups:
            return
        self._lookups.remove(lookup)
        if lookup is self._positions_asked:
            self._positions_asked = None
            self._place(found)
        else:
            self._wiring.out.append(CompleteCall(call=lookup.call, result=found))

    def lookup_failed(self, lookup: Lookup, event: Failed, now_ms: int) -> None:
        lookup.is_under_way = False
        if event.is_unsupported and self._requires_stable:
            self._requires_stable = False  # Before KIP-447 nobody could ask for that.
            return
        self._lookup_failed(lookup, _lost(event, "OffsetFetch"), now_ms)

    def _lookup_failed(self, lookup: Lookup, error: KafkaException, now_ms: int) -> None:
        if error.code in ELSEWHERE or isinstance(error, NetworkException):
            self._finder.forget()
        if error.code.is_retriable or error.code in AGAIN:
            lookup.failures += 1
            lookup.last_error = error
            lookup.not_before_ms = now_ms + self._wiring.wait_ms(lookup.failures)
            return
        if lookup in self._lookups:
            self._lookups.remove(lookup)
        if lookup is self._positions_asked:
            self._positions_asked = None
            for place in lookup.places:
                state = self._subscriptions.assigned.get(place)
                if state is not None:
                    state.retry_at_ms = now_ms + self._wiring.wait_ms(1)
            self._fail(error)
        else:
            self._wiring.out.append(FailCall(call=lookup.call, error=error))

    def _place(self, found: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Positions from what is committed, or as auto.offset.reset says."""
        for place, committed in found.items():
            state = self._subscriptions.assigned.get(place)
            if state is None or state.stage is not Stage.COMMITTED:
                continue
            if committed is not None:
                state.seek(Position(committed.offset, committed.leader_epoch))
            else:
                state.reset(self._reset_strategy)
        self._wiring.wake()

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When something is due."""
        if not self.is_busy:
            return None
        times = [time for commit in self._commits for time in (commit.deadline_ms, commit.not_before_ms)]
        for lookup in self._lookups:
            times += [lookup.not_before_ms] + ([] if lookup.deadline_ms is None else [lookup.deadline_ms])
        return min((time for time in times if time > now_ms), default=None)


def _lost(event: Failed, api: str) -> KafkaException:
    stored = Stored.POSSIBLY if event.was_sent else Stored.NO
    if event.is_unsupported:
        return UnsupportedVersionException(f"{event.address}: {event.reason}", stored=Stored.NO, api=api)
    return NetworkException(f"{event.address}: {event.reason}", stored=stored, api=api)
