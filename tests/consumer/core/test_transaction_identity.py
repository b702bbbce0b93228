"""Identity of commits and transactions: never empty, and never of a later generation than the one that read."""

from chaffinch.consumer.core.membership_states import State
from chaffinch.errors import CommitFailedException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest
from tests.consumer.core.rig import MEMBER_ID, Rig

OFFSETS = {TopicPartition("t", 0): OffsetAndMetadata(5)}


def stable() -> Rig:
    return Rig(**{"max.poll.interval.ms": 1_000}).reach(State.STABLE)


def test_transaction_has_the_identity_of_the_reading_member() -> None:
    rig = stable()
    assert rig.core.group_metadata()[1:3] == (1, MEMBER_ID)
    rig.advance(2_000)  # No poll: out of the group.
    assert not rig.group.membership.identity.has_generation
    assert rig.core.group_metadata()[1:3] == (1, MEMBER_ID)


def test_no_identity_before_the_first_assignment() -> None:
    rig = Rig()
    rig.core.subscribe(["t"])
    assert rig.core.group_metadata()[1:3] == (-1, "")


def test_waiting_commit_fails_after_expulsion() -> None:
    rig = stable()
    rig.group.finder.forget()
    outcomes: list[object] = []
    rig.group.commits.commit(OFFSETS, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.step()
    assert not rig.pending(OffsetCommitRequest)
    rig.group.membership.reset_generation("it took too long")
    rig.step()
    assert not rig.pending(OffsetCommitRequest)
    (error,) = outcomes
    assert isinstance(error, CommitFailedException)
