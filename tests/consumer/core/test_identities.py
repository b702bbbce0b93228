"""As whom a member commits and writes: never as nobody, nor as a member of a later generation than the one in which it read."""

from chaffinch.consumer.core.membership_moves import State
from chaffinch.errors import CommitFailedException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.protocol.messages.offset_commit import OffsetCommitRequest
from tests.consumer.core.rig import ME, Rig

OFFSETS = {TopicPartition("t", 0): OffsetAndMetadata(5)}


def stable() -> Rig:
    return Rig(**{"max.poll.interval.ms": 1_000}).reach(State.STABLE)


def test_a_transaction_is_written_as_the_member_that_read_even_when_the_group_has_gone_on() -> None:
    rig = stable()
    assert rig.core.group_metadata()[1:3] == (1, ME)
    rig.advance(2_000)  # No poll: out of the group.
    assert not rig.group.membership.identity.has_generation
    assert rig.core.group_metadata()[1:3] == (1, ME)


def test_before_the_first_assignment_it_is_written_as_nobody() -> None:
    rig = Rig()
    rig.core.subscribe(["t"])
    assert rig.core.group_metadata()[1:3] == (-1, "")


def test_what_waits_for_the_coordinator_is_not_committed_once_the_group_has_gone_on() -> None:
    rig = stable()
    rig.group.finder.forget()
    outcomes: list[object] = []
    rig.group.commits.commit(OFFSETS, rig.steady_ms + 60_000, outcomes.append, retries=True)
    rig.step()
    assert not rig.pending(OffsetCommitRequest)
    rig.group.membership.lose("it took too long")
    rig.step()
    assert not rig.pending(OffsetCommitRequest)
    (error,) = outcomes
    assert isinstance(error, CommitFailedException)
