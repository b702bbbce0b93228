"""Why offsets were not committed, and what to do, in words that fit a consumer."""

from __future__ import annotations

from chaffinch.consumer.core.group_requests import NO_IDENTITY
from chaffinch.consumer.core.membership import Membership
from chaffinch.errors import CommitFailedException, KafkaException, RebalanceInProgressException, Stored
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition


def rebalancing(membership: Membership, place: TopicPartition | None = None) -> KafkaException:
    joins = membership.identity_of_caller == NO_IDENTITY
    what = f"this consumer joins group {membership.group_id!r}" if joins else "the group rebalances"
    text = f"offsets cannot be committed while {what}: poll, then commit again"
    return RebalanceInProgressException(text, topic_partition=place, stored=Stored.NO, api="OffsetCommit")


def no_member_yet(group_id: str) -> KafkaException:
    text = f"this consumer is no member of group {group_id!r} yet: it joins with its first poll, and can commit after it"
    return CommitFailedException(text, api="OffsetCommit")


def expelled(group_id: str) -> KafkaException:
    text = (
        f"group {group_id!r} has gone on without this member: what it read since is read again by others; it joins again with the next poll"
    )
    return CommitFailedException(text, api="OffsetCommit")


def too_long(committed: OffsetAndMetadata | None) -> str:
    characters = 0 if committed is None else len(committed.metadata)
    return f"the metadata has {characters} characters, more than the broker's offset.metadata.max.bytes, 4096 unless it is set: shorten it"


def not_a_member(group_id: str) -> KafkaException:
    text = (
        f"group {group_id!r} has members that share its partitions, so only they commit for it: subscribe, or use a group.id of your own"
        " for partitions that you assign"
    )
    return CommitFailedException(text, api="OffsetCommit")
