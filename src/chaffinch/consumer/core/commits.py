"""Offset commits (OffsetCommit), explicit and automatic. Lookups of committed offsets are in `committed.py`.

Follows ConsumerCoordinator.java: a commit that waits is retried until its timeout, any other is sent once. A member that the group has
removed cannot commit, and the error says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.client.connections import RequestFailed, ResponseReceived
from chaffinch.client.offset_requests import LAST_VERSION_WITH_NAMES, VERSION_WITH_IDS, offset_commit
from chaffinch.consumer.core.call_errors import (
    IN_TIME,
    expelled_error,
    metadata_too_long,
    names_of,
    network_error,
    no_response_error,
    not_a_member_error,
    not_joined_error,
    rebalancing_error,
    within,
)
from chaffinch.consumer.core.committed import COORDINATOR_LOST, UNKNOWN_TOPIC, CommittedOffsets
from chaffinch.consumer.core.context import ConsumerContext
from chaffinch.consumer.core.group_requests import NO_IDENTITY, Identity
from chaffinch.consumer.core.membership import OUT_OF_GROUP, Membership
from chaffinch.consumer.core.membership_states import State
from chaffinch.consumer.core.missing_partitions import MISSING_MS, MissingPartitions
from chaffinch.consumer.core.options import auto_commits
from chaffinch.consumer.core.pending_offsets import Commit, CommitToken, Outcome, TopicsToken
from chaffinch.consumer.core.reset_policy import ResetPolicy
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
STALE_GENERATION: Final = frozenset({codes.ILLEGAL_GENERATION, codes.REBALANCE_IN_PROGRESS})


class Commits:
    """The commits of one group member. Exists only with a group.id."""

    def __init__(
        self, context: ConsumerContext, membership: Membership, missing_partitions: MissingPartitions, resets: ResetPolicy
    ) -> None:
        self.is_automatic = auto_commits(context.settings)
        self._context = context
        self._membership = membership
        self._finder = membership.finder
        self._missing_partitions = missing_partitions
        self.committed = CommittedOffsets(context, membership, resets)
        self._commits: list[Commit] = []
        self._auto_due_ms = 0
        self._auto: Commit | None = None
        self._without_topic_ids: set[Address] = set()
        """Coordinators that support no topic ids in OffsetCommit (before Apache Kafka 4.2)."""
        self._unknown_tps: set[TopicPartition] = set()
        """Partitions that neither the coordinator nor metadata knew."""

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator is needed."""
        return bool(self._commits) or self.committed.is_busy

    @property
    def last_error(self) -> KafkaException | None:
        """The last error of a pending commit or lookup."""
        return next((commit.last_error for commit in self._commits if commit.last_error is not None), None) or self.committed.last_error

    @property
    def topics(self) -> set[str]:
        """Topics with a partition that the coordinator does not know; they are looked up in metadata."""
        return {tp.topic for commit in self._commits if commit.unknown_since_ms is not None for tp in commit.offsets}

    @property
    def is_committing(self) -> bool:
        """Whether commits are pending."""
        return bool(self._commits)

    # Commits.

    def commit_all(
        self, deadline_ms: int, on_done: Outcome, *, retries: bool, tps: Collection[TopicPartition] | None = None, limit: str = IN_TIME
    ) -> Commit | None:
        """Commit the positions of all partitions, or of `tps`; otherwise as `commit`.

        A partition that metadata does not contain is left out only if the coordinator did not know it either: a broker may lag behind.
        """
        if retries:
            self._drop_waiting_auto_commit()
        self._unknown_tps = {tp for tp in self._unknown_tps if self._context.cluster.partition(tp) is None}
        offsets = {tp: offset for tp, offset in self.positions().items() if tp not in self._unknown_tps and (tps is None or tp in tps)}
        ids = self._context.subscriptions.topic_ids()
        found = Commit(offsets, deadline_ms, retries, on_done, self._identity, is_automatic=True, topic_ids=ids, limit=limit)
        return self._begin(found)

    def _drop_waiting_auto_commit(self) -> None:
        """Drop a periodic commit that still waits for the coordinator: the commit made now has later offsets, and must not be
        overwritten.
        """
        if self._auto is not None and not self._auto.is_under_way:
            self._commits.remove(self._auto)
            self._auto, self._auto_due_ms = None, 0

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        deadline_ms: int,
        on_done: Outcome,
        *,
        retries: bool,
        limit: str = IN_TIME,
    ) -> Commit | None:
        """Commit offsets that the application gives, for the topics that exist now; or with None the positions.

        Returns None if it completed at once.
        """
        is_explicit = offsets is not None
        offsets = self.positions() if offsets is None else offsets
        ids = {tp: self._context.ids.current(tp.topic) for tp in offsets} if is_explicit else self._context.subscriptions.topic_ids()
        return self._begin(
            Commit(offsets, deadline_ms, retries, on_done, self._identity, topic_ids=ids, is_explicit=is_explicit, limit=limit)
        )

    def _begin(self, commit: Commit) -> Commit | None:
        error = self._commit_error_now(is_empty=not commit.offsets, is_automatic=commit.is_automatic)
        if error is not None or not commit.offsets:
            commit.on_done(error)
            return None
        self._commits.append(commit)
        return commit

    def _commit_error_now(self, *, is_empty: bool, is_automatic: bool) -> KafkaException | None:
        """Why this consumer cannot commit now. An automatic commit while joining is the final one before it leaves: see `advance`."""
        membership = self._membership
        if membership.fatal is not None and not (is_empty and is_automatic):
            return copy_for_raise(
                membership.fatal
            )  # Also for an empty commit of positions: the caller believes that its records are committed.
        if is_empty:
            return None
        # A joining member is about to enter another generation, perhaps before the commit arrives.
        is_joining = membership.state in (State.JOINING, State.SYNCING)
        if not self._context.subscriptions.is_automatic or (membership.identity.has_generation and (is_automatic or not is_joining)):
            return None
        if is_joining and not membership.identity.has_generation and self._finder.known_address is None:
            return None  # There is no group yet that could rebalance. The commit waits for it (see `_fail_refused`), or times out.
        if is_joining:
            return self._rebalancing()
        return (
            not_joined_error(self._context.group_id)
            if membership.caller_identity == NO_IDENTITY
            else expelled_error(self._context.group_id)
        )

    def _rebalancing(self, tp: TopicPartition | None = None) -> KafkaException:
        return rebalancing_error(self._context.group_id, tp, joins=self._membership.caller_identity == NO_IDENTITY)

    @property
    def _identity(self) -> Identity:
        return self._membership.identity if self._context.subscriptions.is_automatic else NO_IDENTITY

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets up to which the caller has read."""
        consumed = self._context.subscriptions.consumed().items()
        return {tp: OffsetAndMetadata(position.offset, "", position.offset_epoch) for tp, position in consumed}

    def polled(self, steady_ms: int) -> None:
        """The caller polls again, so earlier records are processed: commit them if the interval has passed."""
        if self.is_automatic and self._auto is None and steady_ms >= self._auto_due_ms and self._may_auto_commit:
            self._auto_due_ms = steady_ms + int(self._context.settings["auto.commit.interval.ms"])
            time_ms = int(self._context.settings[API_TIMEOUT])
            limit = within(time_ms, API_TIMEOUT)
            self._auto = self.commit_all(steady_ms + time_ms, self._auto_done, retries=False, limit=limit)

    @property
    def _may_auto_commit(self) -> bool:
        return not self._context.subscriptions.is_automatic or self._membership.state is State.STABLE

    def _auto_done(self, error: KafkaException | None) -> None:
        self._auto = None
        if error is not None:
            self._context.report(f"group {self._context.group_id!r}: offsets were not committed, the next poll retries: {error}")
            self._auto_due_ms = 0 if error.code.is_retriable else self._auto_due_ms

    # The round.

    def advance(self, steady_ms: int) -> None:
        if self.is_busy:
            self._expire(steady_ms)
            self._follow_generation()
        self.committed.request_positions(steady_ms)
        address = self._finder.address(steady_ms)
        if address is None:
            return
        self._fail_refused()
        membership = self._membership
        # Until all members have joined, the coordinator accepts commits of the previous generation, but not queued behind a waiting
        # JoinGroup. After that it accepts none until all have synced.
        address_of_commits = address.first_lane if membership.state is State.JOINING else address
        for commit in list(self._commits) if membership.state is not State.SYNCING else ():
            if not commit.is_under_way and steady_ms >= commit.not_before_ms and not (commit.failures and self._has_later_commit(commit)):
                self._send_commit(commit, address_of_commits, steady_ms)
        for commit in self._commits:
            commit.is_checked = False  # A commit that was not sent at once is checked again.
        self.committed.advance(address, steady_ms)

    def _has_later_commit(self, commit: Commit) -> bool:
        """Whether a later commit has some of its partitions. Then it waits for that one, so as not to overwrite later offsets."""
        later = self._commits[self._commits.index(commit) + 1 :]
        return any(not commit.offsets.keys().isdisjoint(other.offsets) for other in later)

    def _send_commit(self, commit: Commit, address: Address, steady_ms: int) -> None:
        """Send it with topic ids: the coordinator rejects offsets of a deleted topic. Without ids, its metadata is checked first."""
        self._drop_outdated(commit)
        remaining = {tp: offset for tp, offset in commit.offsets.items() if tp not in commit.skipped}
        ids = {tp: commit.topic_ids.get(tp, ZERO_UUID) for tp in remaining}
        has_ids = ZERO_UUID not in ids.values() and address.first_lane not in self._without_topic_ids
        has_some_ids = not commit.is_explicit and any(topic_id != ZERO_UUID for topic_id in ids.values())
        if remaining and not commit.is_checked and (commit.unknown_id_count or (has_some_ids and not has_ids)):
            commit.is_under_way = True
            topics = [MetadataRequestTopic(name=topic) for topic in sorted({tp.topic for tp in remaining})]
            self._context.send(address, MetadataRequest(topics=topics, allow_auto_topic_creation=False), TopicsToken(commit))
            return
        missing = commit.missing & remaining.keys() if commit.is_checked else frozenset()
        offsets = {tp: offset for tp, offset in remaining.items() if tp not in missing}
        names = {topic_id: tp.topic for tp, topic_id in ids.items()} if has_ids else {}
        token = CommitToken(commit, commit.identity, names, missing)
        if not offsets:
            self._apply_results(token, [], "apache", steady_ms)
            return
        commit.is_under_way = True
        self._context.counts["commits_sent"] += 1
        identity = commit.identity._asdict()
        instance_id = self._context.instance_id if commit.identity.has_generation else None
        message = offset_commit(self._context.group_id, offsets, ids if has_ids else {}, **identity, instance_id=instance_id)
        self._context.send(address, message, token, version_max=VERSION_WITH_IDS if has_ids else LAST_VERSION_WITH_NAMES)

    def _drop_outdated(self, commit: Commit) -> None:
        """Drop positions in a topic that was deleted and created again; the log reports it with the metadata.

        Offsets that the application gave are rejected: it may commit them again, if they are meant for the new topic.
        """
        for tp, topic_id in commit.topic_ids.items():
            if tp in commit.skipped or tp not in commit.offsets or not self._context.ids.is_outdated(tp.topic, topic_id):
                continue
            commit.skipped.add(tp)
            if commit.is_explicit:
                text = "the topic was deleted and created again in the meantime: commit again if the offset is meant for the new topic"
                commit.unknown = exception_for(
                    codes.UNKNOWN_TOPIC_ID, message=text, topic_partition=tp, stored=Stored.NO, api="OffsetCommit"
                )
            else:
                commit.outdated.add(tp)

    def topics_response_received(self, event: ResponseReceived) -> None:
        """The coordinator's metadata, which the core has processed: positions in topics that were created again are dropped."""
        commit: Commit = event.token.commit
        counts = {topic.name: len(topic.partitions) for topic in event.message.topics if not topic.error_code}
        unknown = {
            topic.name
            for topic in event.message.topics
            if codes.by_number(topic.error_code, numbering=event.numbering) is codes.UNKNOWN_TOPIC_OR_PARTITION
        }
        is_absent = (tp for tp in commit.offsets if tp.topic in unknown or tp.partition >= counts.get(tp.topic, tp.partition + 1))
        commit.missing = frozenset(is_absent)
        commit.is_under_way, commit.is_checked = False, True
        if commit in self._commits:
            self._context.wake_caller()

    def connection_lost(self, address: Address) -> None:
        """A connection has ended: the broker may have another version when it is back."""
        self._without_topic_ids.discard(address.first_lane)
        self.committed.connection_lost(address)

    def _fail_refused(self) -> None:
        """Fail commits made before the coordinator was known, by a consumer that was not a member and still is not."""
        for commit in [each for each in self._commits if not (each.is_under_way or each.identity.has_generation)]:
            error = self._commit_error_now(is_empty=False, is_automatic=commit.is_automatic)
            if error is not None:
                self._finish(commit, error)

    def _follow_generation(self) -> None:
        """Move the final commits of a closing cooperative member into the generation that it has joined. Other commits fail.

        They also fail after the group removed the member: others may have read and committed further in the meantime.
        """
        for commit in [each for each in self._commits if not each.is_under_way and each.identity != self._identity]:
            if commit.is_final and commit.identity == self._membership.previous_identity:
                commit.identity = self._identity
            else:
                fatal = self._membership.fatal
                self._finish(commit, expelled_error(self._context.group_id) if fatal is None else copy_for_raise(fatal))

    def _expire(self, steady_ms: int) -> None:
        for commit in [found for found in self._commits if steady_ms >= found.deadline_ms]:
            missing = names_of(commit.offsets.keys() - commit.committed)
            text = f"group {self._context.group_id!r}: offsets of {missing} were not committed {commit.limit}"
            text += self._finder.no_response_text() if commit.is_under_way else ""
            self._finish(commit, self._context.timeout_error(text, commit.last_error, api="OffsetCommit", stored=Stored.POSSIBLY))
        self.committed.expire(steady_ms)

    def fail_all(self, error: KafkaException) -> None:
        """Fail all calls."""
        for commit in list(self._commits):
            self._finish(commit, error)
        self.committed.fail_all(error)

    def _finish(self, commit: Commit, error: KafkaException | None) -> None:
        if commit in self._commits:
            self._commits.remove(commit)
            self._context.counts["commits_failed"] += error is not None
            commit.on_done(None if error is None else commit.with_committed(error))
            self._context.wake_caller()

    # Responses.

    def commit_response_received(self, event: ResponseReceived, steady_ms: int) -> None:
        token: CommitToken = event.token
        results = [
            (TopicPartition(topic.name or token.names.get(topic.topic_id, ""), found.partition_index), found.error_code)
            for topic in event.message.topics
            for found in topic.partitions
        ]
        self._apply_results(token, results, event.numbering, steady_ms)

    def _apply_results(self, token: CommitToken, results: list[tuple[TopicPartition, int]], numbering: Numbering, steady_ms: int) -> None:
        """Process the result of each offset. Partitions missing in the coordinator's metadata were not sent; it would not know them."""
        commit = token.commit
        commit.is_under_way = False
        found = [(tp, codes.by_number(number, numbering=numbering)) for tp, number in results]
        found += [(tp, codes.UNKNOWN_TOPIC_OR_PARTITION) for tp in sorted(token.missing)]
        is_doubted = any(code is codes.UNKNOWN_TOPIC_ID for _, code in found)
        commit.unknown_id_count = commit.unknown_id_count + 1 if is_doubted else 0
        error: KafkaException | None = None
        for tp, code in found:
            if code is codes.NONE:
                self._mark_committed(commit, tp)
                continue
            if code is codes.UNKNOWN_TOPIC_ID:
                self._context.ids.report_unknown(commit.topic_ids.get(tp, ZERO_UUID), steady_ms)
                if commit.unknown_id_count == 1:
                    continue
            if code in UNKNOWN_TOPIC and commit.is_automatic:
                self._skip(token, tp, code)
                continue
            if code in STALE_GENERATION and self._has_stale_generation(token):
                commit.retry_later(exception_for(code, stored=Stored.NO, api="OffsetCommit"), self._context, steady_ms)
                return
            if error is None or error.code.is_retriable:
                error = self._commit_error(code, tp, token)
        if commit.unknown_id_count == 1 and error is None:
            return  # It is sent again as soon as new metadata has arrived.
        if error is None or commit.committed >= commit.offsets.keys():  # Each partition was committed in one attempt or another.
            self._finish(commit, commit.partial_error)
        else:
            self._commit_failed(commit, error, steady_ms)

    def _mark_committed(self, commit: Commit, tp: TopicPartition) -> None:
        commit.committed.add(tp)
        for earlier in self._commits[: self._commits.index(commit)] if commit in self._commits else ():
            earlier.skipped.add(tp)

    def _skip(self, token: CommitToken, tp: TopicPartition, code: ErrorCode) -> None:
        """Skip a partition of an automatic commit that the coordinator does not know; the other partitions are committed."""
        token.commit.skipped.add(tp)
        token.commit.unknown = self._commit_error(code, tp, token)
        self._unknown_tps.add(tp)
        self._context.refresh()

    def _has_stale_generation(self, token: CommitToken) -> bool:
        """Whether a final commit arrived after the start of a generation that this member is in, or is about to join.

        See `_follow_generation`.
        """
        membership = self._membership
        joins = membership.state is State.JOINING and token.identity == membership.identity
        return token.commit.is_final and (joins or token.identity == membership.previous_identity)

    def _commit_error(self, code: ErrorCode, tp: TopicPartition, token: CommitToken) -> KafkaException:
        membership = self._membership
        is_current = token.identity == membership.identity
        if code in OUT_OF_GROUP:
            if not token.identity.has_generation:
                return not_a_member_error(self._context.group_id)
            if is_current and membership.state is not State.JOINING:  # While joining, the response to JoinGroup decides.
                membership.reset_generation(f"the response to a commit was {code.name}", keeps_id=code is codes.ILLEGAL_GENERATION)
            return expelled_error(self._context.group_id)
        text = metadata_too_long(token.commit.offsets.get(tp)) if code is codes.OFFSET_METADATA_TOO_LARGE else None
        error = exception_for(code, message=text, topic_partition=tp, stored=Stored.NO, api="OffsetCommit")
        if code is codes.FENCED_INSTANCE_ID and is_current:
            membership.fenced(error)
        elif code is codes.REBALANCE_IN_PROGRESS:
            if is_current and membership.state is State.STABLE:
                membership.request_rejoin("the group is rebalancing")
            return self._rebalancing(tp)
        elif code in COORDINATOR_LOST:
            self._finder.forget()
        return error

    def commit_request_failed(self, token: CommitToken | TopicsToken, event: RequestFailed, steady_ms: int) -> None:
        token.commit.is_under_way = False
        if isinstance(token, CommitToken) and token.names and event.is_unsupported:
            self._without_topic_ids.add(event.address.first_lane)
            self._context.counts["commits_sent"] -= 1  # It was not sent: it is sent with names instead.
            return
        error = no_response_error(event, "OffsetCommit") if isinstance(token, CommitToken) else network_error(event, "Metadata")
        self._commit_failed(token.commit, error, steady_ms)

    def _commit_failed(self, commit: Commit, error: KafkaException, steady_ms: int) -> None:
        is_unknown = error.code in UNKNOWN_TOPIC
        if not is_unknown:
            commit.unknown_since_ms = None
        elif commit.unknown_since_ms is None:
            commit.unknown_since_ms = steady_ms
        has_waited = commit.unknown_since_ms is not None and steady_ms - commit.unknown_since_ms >= MISSING_MS
        is_gone = is_unknown and has_waited
        if is_unknown:
            self._context.refresh()
        if has_waited and error.topic_partition is not None and (text := self._missing_partitions.text(error.topic_partition)) is not None:
            error = exception_for(error.code, message=text, topic_partition=error.topic_partition, stored=Stored.NO, api="OffsetCommit")
        if not commit.retries or is_gone or not (error.code.is_retriable or error.code in COORDINATOR_LOST):
            self._finish(commit, error)
        else:
            commit.retry_later(error, self._context, steady_ms)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When something is due."""
        if not self.is_busy:
            return None
        times = [time for commit in self._commits for time in (commit.deadline_ms, commit.not_before_ms)] + self.committed.deadlines_ms()
        return min((time for time in times if time > steady_ms), default=None)
