"""Committing offsets (OffsetCommit): on request, and automatically. Looking them up is in `committed.py`.

Follows ConsumerCoordinator.java: a commit that waits is tried again until its time is over, one that does not is tried once; a member
that the group has gone on without cannot commit, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.offset_requests import LAST_VERSION_WITH_NAMES, VERSION_WITH_IDS, offset_commit
from chaffinch.consumer.core.absences import ABSENT_MS, Absences
from chaffinch.consumer.core.call_errors import (
    IN_TIME,
    expelled,
    lost,
    names_of,
    network_error,
    no_member_yet,
    not_a_member,
    rebalancing,
    too_long,
    within,
)
from chaffinch.consumer.core.committed import ELSEWHERE, UNKNOWN, CommittedOffsets
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.consumer.core.membership import OUT_OF_GROUP, Membership
from chaffinch.consumer.core.membership_moves import State
from chaffinch.consumer.core.offsets_asked import Commit, CommitSent, Outcome, TopicsAsked
from chaffinch.consumer.core.options import commits_itself
from chaffinch.consumer.core.reset_policy import ResetPolicy
from chaffinch.consumer.core.wiring import Wiring
from chaffinch.errors import (
    ErrorCode,
    KafkaException,
    Stored,
    codes,
    exception_for,
)
from chaffinch.errors.codes import Numbering
from chaffinch.errors.copies import copy_for_raise
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chaffinch.protocol.primitives import ZERO_UUID

API_TIMEOUT: Final = "default.api.timeout.ms"
OVERTAKEN: Final = frozenset({codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS})


class Commits:
    """The offsets of one group. Without a group nothing is here."""

    def __init__(self, wiring: Wiring, membership: Membership, absences: Absences, resets: ResetPolicy) -> None:
        self.is_automatic = commits_itself(wiring.settings)
        self._wiring = wiring
        self._membership = membership
        self._finder = membership.finder
        self._absences = absences
        self.committed = CommittedOffsets(wiring, membership, resets)
        self._commits: list[Commit] = []
        self._auto_due_ms = 0
        self._auto: Commit | None = None
        self._only_names: set[Address] = set()
        """Coordinators that take no topic ids in OffsetCommit (before Apache Kafka 4.2)."""
        self._gone: set[TopicPartition] = set()
        """Those that the coordinator did not know, and metadata did not either then."""

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator is needed."""
        return bool(self._commits) or self.committed.is_busy

    @property
    def last_error(self) -> KafkaException | None:
        """What a commit or look-up on its way was refused with last."""
        return next((commit.last_error for commit in self._commits if commit.last_error is not None), None) or self.committed.last_error

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
        offsets = {
            place: offset for place, offset in self.positions().items() if place not in self._gone and (places is None or place in places)
        }
        ids = self._wiring.subscriptions.topic_ids()
        found = Commit(offsets, deadline_ms, retries, done, self._identity, is_automatic=True, topic_ids=ids, limit=limit)
        return self._begin(found)

    def _supersede(self) -> None:
        """A commit of the moment that still waits for the coordinator says less than the one that comes now, and would come after it."""
        if self._auto is not None and not self._auto.is_under_way:
            self._commits.remove(self._auto)
            self._auto, self._auto_due_ms = None, 0

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        deadline_ms: int,
        done: Outcome,
        *,
        retries: bool,
        limit: str = IN_TIME,
    ) -> Commit | None:
        """Commit offsets that the application names itself, which are of the topics that are there now, or with None what it has read;
        None when it was over at once."""
        is_named = offsets is not None
        offsets = self.positions() if offsets is None else offsets
        ids = {place: self._wiring.ids.present(place.topic) for place in offsets} if is_named else self._wiring.subscriptions.topic_ids()
        return self._begin(Commit(offsets, deadline_ms, retries, done, self._identity, topic_ids=ids, is_named=is_named, limit=limit))

    def _begin(self, commit: Commit) -> Commit | None:
        refusal = self._refusal(is_empty=not commit.offsets, is_automatic=commit.is_automatic)
        if refusal is not None or not commit.offsets:
            commit.done(refusal)
            return None
        self._commits.append(commit)
        return commit

    def _refusal(self, *, is_empty: bool, is_automatic: bool) -> KafkaException | None:
        """Why this consumer cannot commit now. What it commits by itself while it joins is the last, before it leaves: see `advance`."""
        membership = self._membership
        if membership.fatal is not None and not (is_empty and is_automatic):
            return copy_for_raise(
                membership.fatal
            )  # Also of what it has read, which is nothing any more: who asks believes it is committed.
        if is_empty:
            return None
        # Who joins is about to be of another generation, which may come before the commit does.
        is_joining = membership.state in (State.JOINING, State.SYNCING)
        if not self._wiring.subscriptions.is_automatic or (membership.identity.has_generation and (is_automatic or not is_joining)):
            return None
        if is_joining and not membership.identity.has_generation and self._finder.address_known is None:
            return None  # There is no group yet that could rebalance. It waits until there is, see `_refuse`, or its time is over.
        if is_joining:
            return self._rebalancing()
        return no_member_yet(self._wiring.group_id) if membership.identity_of_caller == NO_IDENTITY else expelled(self._wiring.group_id)

    def _rebalancing(self, place: TopicPartition | None = None) -> KafkaException:
        return rebalancing(self._wiring.group_id, place, joins=self._membership.identity_of_caller == NO_IDENTITY)

    @property
    def _identity(self) -> Identity:
        return self._membership.identity if self._wiring.subscriptions.is_automatic else NO_IDENTITY

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the caller has read up to."""
        consumed = self._wiring.subscriptions.consumed().items()
        return {place: OffsetAndMetadata(position.offset, "", position.offset_epoch) for place, position in consumed}

    def polled(self, steady_ms: int) -> None:
        """The caller polls again, so what it had is done with: commit it when it is time to."""
        if self.is_automatic and self._auto is None and steady_ms >= self._auto_due_ms and self._may_commit_itself:
            self._auto_due_ms = steady_ms + int(self._wiring.settings["auto.commit.interval.ms"])
            time_ms = int(self._wiring.settings[API_TIMEOUT])
            limit = within(time_ms, API_TIMEOUT)
            self._auto = self.commit_all(steady_ms + time_ms, self._auto_done, retries=False, limit=limit)

    @property
    def _may_commit_itself(self) -> bool:
        return not self._wiring.subscriptions.is_automatic or self._membership.state is State.STABLE

    def _auto_done(self, error: KafkaException | None) -> None:
        self._auto = None
        if error is not None:
            self._wiring.report(f"group {self._wiring.group_id!r}: offsets were not committed, the next poll tries again: {error}")
            self._auto_due_ms = 0 if error.code.is_retriable else self._auto_due_ms

    # The round.

    def advance(self, steady_ms: int) -> None:
        if self.is_busy:
            self._expire(steady_ms)
            self._follow()
        self.committed.want_positions(steady_ms)
        address = self._finder.address(steady_ms)
        if address is None:
            return
        self._refuse()
        membership = self._membership
        # Until all have joined the coordinator takes commits of the generation before, but not behind a JoinGroup, which waits for that;
        # and none from then on until all have synced.
        address_of_commits = address.first_lane if membership.state is State.JOINING else address
        for commit in list(self._commits) if membership.state is not State.SYNCING else ():
            if not commit.is_under_way and steady_ms >= commit.not_before_ms and not (commit.failures and self._is_followed(commit)):
                self._send_commit(commit, address_of_commits, steady_ms)
        for commit in self._commits:
            commit.is_checked = False  # What was not sent at once is checked again.
        self.committed.advance(address, steady_ms)

    def _is_followed(self, commit: Commit) -> bool:
        """Whether a later one tells of some of its partitions: that is waited for, lest this one takes the group back."""
        later = self._commits[self._commits.index(commit) + 1 :]
        return any(not commit.offsets.keys().isdisjoint(other.offsets) for other in later)

    def _send_commit(self, commit: Commit, address: Address, steady_ms: int) -> None:
        """By id: the coordinator refuses positions in a deleted topic. Where it takes names only, its metadata is asked first."""
        self._drop_past(commit)
        left = {place: offset for place, offset in commit.offsets.items() if place not in commit.left_out}
        ids = {place: commit.topic_ids.get(place, ZERO_UUID) for place in left}
        has_ids = ZERO_UUID not in ids.values() and address.first_lane not in self._only_names
        knows_ids = not commit.is_named and any(topic_id != ZERO_UUID for topic_id in ids.values())
        if left and not commit.is_checked and (commit.doubts or (knows_ids and not has_ids)):
            commit.is_under_way = True
            topics = [MetadataRequestTopic(name=topic) for topic in sorted({place.topic for place in left})]
            self._wiring.send(address, MetadataRequest(topics=topics, allow_auto_topic_creation=False), TopicsAsked(commit))
            return
        absent = commit.absent & left.keys() if commit.is_checked else frozenset()
        offsets = {place: offset for place, offset in left.items() if place not in absent}
        names = {topic_id: place.topic for place, topic_id in ids.items()} if has_ids else {}
        token = CommitSent(commit, commit.identity, names, absent)
        if not offsets:
            self._answered(token, [], "apache", steady_ms)
            return
        commit.is_under_way = True
        self._wiring.counts["commits_sent"] += 1
        who = commit.identity._asdict()
        instance_id = self._wiring.instance_id if commit.identity.has_generation else None
        message = offset_commit(self._wiring.group_id, offsets, ids if has_ids else {}, **who, instance_id=instance_id)
        self._wiring.send(address, message, token, version_max=VERSION_WITH_IDS if has_ids else LAST_VERSION_WITH_NAMES)

    def _drop_past(self, commit: Commit) -> None:
        """Positions in a topic that was deleted and created again are not committed: the log says so when metadata does. Offsets that the
        application named are refused: it may commit them again, if it means the new topic."""
        for place, topic_id in commit.topic_ids.items():
            if place in commit.left_out or place not in commit.offsets or not self._wiring.ids.is_past(place.topic, topic_id):
                continue
            commit.left_out.add(place)
            if commit.is_named:
                text = "the topic was deleted and created again meanwhile: commit again if the offset is meant for the new topic"
                commit.unknown = exception_for(
                    codes.UNKNOWN_TOPIC_ID, message=text, topic_partition=place, stored=Stored.NO, api="OffsetCommit"
                )
            else:
                commit.past.add(place)

    def topics_answered(self, event: ResponseReceived) -> None:
        """The coordinator's metadata, which the core has taken in: what was read of topics that are others now is dropped."""
        commit: Commit = event.token.commit
        counts = {topic.name: len(topic.partitions) for topic in event.message.topics if not topic.error_code}
        unknown = {
            topic.name
            for topic in event.message.topics
            if codes.by_number(topic.error_code, numbering=event.numbering) is codes.UNKNOWN_TOPIC_OR_PARTITION
        }
        is_absent = (
            place for place in commit.offsets if place.topic in unknown or place.partition >= counts.get(place.topic, place.partition + 1)
        )
        commit.absent = frozenset(is_absent)
        commit.is_under_way, commit.is_checked = False, True
        if commit in self._commits:
            self._wiring.wake()

    def lost(self, address: Address) -> None:
        """A connection is gone: the broker may be of another version when it is back."""
        self._only_names.discard(address.first_lane)
        self.committed.lost(address)

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
                self._end(commit, expelled(self._wiring.group_id) if fatal is None else copy_for_raise(fatal))

    def _expire(self, steady_ms: int) -> None:
        for commit in [found for found in self._commits if steady_ms >= found.deadline_ms]:
            missing = names_of(commit.offsets.keys() - commit.committed)
            text = f"group {self._wiring.group_id!r}: offsets of {missing} were not committed {commit.limit}"
            text += self._finder.silent() if commit.is_under_way else ""
            self._end(commit, self._wiring.time_out(text, commit.last_error, api="OffsetCommit", stored=Stored.POSSIBLY))
        self.committed.expire(steady_ms)

    def give_up(self, error: KafkaException) -> None:
        """Nobody will hear any more."""
        for commit in list(self._commits):
            self._end(commit, error)
        self.committed.give_up(error)

    def _end(self, commit: Commit, error: KafkaException | None) -> None:
        if commit in self._commits:
            self._commits.remove(commit)
            self._wiring.counts["commits_failed"] += error is not None
            commit.done(None if error is None else commit.told(error))
            self._wiring.wake()

    # Answers.

    def commit_answered(self, event: ResponseReceived, steady_ms: int) -> None:
        token: CommitSent = event.token
        results = [
            (TopicPartition(topic.name or token.names.get(topic.topic_id, ""), found.partition_index), found.error_code)
            for topic in event.message.topics
            for found in topic.partitions
        ]
        self._answered(token, results, event.numbering, steady_ms)

    def _answered(self, token: CommitSent, results: list[tuple[TopicPartition, int]], numbering: Numbering, steady_ms: int) -> None:
        """What became of each offset; those that are not in the coordinator's metadata were not sent, and it would not know them."""
        commit = token.commit
        commit.is_under_way = False
        found = [(place, codes.by_number(number, numbering=numbering)) for place, number in results]
        found += [(place, codes.UNKNOWN_TOPIC_OR_PARTITION) for place in sorted(token.absent)]
        is_doubted = any(code is codes.UNKNOWN_TOPIC_ID for _, code in found)
        commit.doubts = commit.doubts + 1 if is_doubted else 0
        error: KafkaException | None = None
        for place, code in found:
            if code is codes.NONE:
                self._taken(commit, place)
                continue
            if code is codes.UNKNOWN_TOPIC_ID:
                self._wiring.ids.doubt(commit.topic_ids.get(place, ZERO_UUID), steady_ms)
                if commit.doubts == 1:
                    continue
            if code in UNKNOWN and commit.is_automatic:
                self._leave_out(token, place, code)
                continue
            if code in OVERTAKEN and self._is_overtaken(token):
                commit.try_again(exception_for(code, stored=Stored.NO, api="OffsetCommit"), self._wiring, steady_ms)
                return
            if error is None or error.code.is_retriable:
                error = self._commit_error(code, place, token)
        if commit.doubts == 1 and error is None:
            return  # It goes again at once, once metadata has said what is there.
        if error is None or commit.committed >= commit.offsets.keys():  # Each in one attempt or another.
            self._end(commit, commit.shortfall)
        else:
            self._commit_failed(commit, error, steady_ms)

    def _taken(self, commit: Commit, place: TopicPartition) -> None:
        commit.committed.add(place)
        for earlier in self._commits[: self._commits.index(commit)] if commit in self._commits else ():
            earlier.left_out.add(place)

    def _leave_out(self, token: CommitSent, place: TopicPartition, code: ErrorCode) -> None:
        """Of an automatic commit, which does not wait for what the coordinator does not know; the others are committed all the same."""
        token.commit.left_out.add(place)
        token.commit.unknown = self._commit_error(code, place, token)
        self._gone.add(place)
        self._wiring.refresh()

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
                return not_a_member(self._wiring.group_id)
            if is_present and membership.state is not State.JOINING:  # There the answer to JoinGroup tells what has become of it.
                membership.lose(f"a commit was answered with {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
            return expelled(self._wiring.group_id)
        text = too_long(token.commit.offsets.get(place)) if code is codes.OFFSET_METADATA_TOO_LARGE else None
        error = exception_for(code, message=text, topic_partition=place, stored=Stored.NO, api="OffsetCommit")
        if code is codes.FENCED_INSTANCE_ID and is_present:
            membership.fenced(error)
        elif code is codes.REBALANCE_IN_PROGRESS:
            if is_present and membership.state is State.STABLE:
                membership.rebalance("the group is rebalancing")
            return self._rebalancing(place)
        elif code in ELSEWHERE:
            self._finder.forget()
        return error

    def commit_failed(self, token: CommitSent | TopicsAsked, event: RequestFailed, steady_ms: int) -> None:
        token.commit.is_under_way = False
        if isinstance(token, CommitSent) and token.names and event.is_unsupported:
            self._only_names.add(event.address.first_lane)
            self._wiring.counts["commits_sent"] -= 1  # It was not: it goes by name.
            return
        error = lost(event, "OffsetCommit") if isinstance(token, CommitSent) else network_error(event, "Metadata")
        self._commit_failed(token.commit, error, steady_ms)

    def _commit_failed(self, commit: Commit, error: KafkaException, steady_ms: int) -> None:
        is_unknown = error.code in UNKNOWN
        if not is_unknown:
            commit.unknown_since_ms = None
        elif commit.unknown_since_ms is None:
            commit.unknown_since_ms = steady_ms
        has_waited = commit.unknown_since_ms is not None and steady_ms - commit.unknown_since_ms >= ABSENT_MS
        is_gone = is_unknown and has_waited
        if is_unknown:
            self._wiring.refresh()
        if has_waited and error.topic_partition is not None and (text := self._absences.text(error.topic_partition)) is not None:
            error = exception_for(error.code, message=text, topic_partition=error.topic_partition, stored=Stored.NO, api="OffsetCommit")
        if not commit.retries or is_gone or not (error.code.is_retriable or error.code in ELSEWHERE):
            self._end(commit, error)
        else:
            commit.try_again(error, self._wiring, steady_ms)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due."""
        if not self.is_busy:
            return None
        times = [time for commit in self._commits for time in (commit.deadline_ms, commit.not_before_ms)] + self.committed.deadlines_ms()
        return min((time for time in times if time > steady_ms), default=None)
