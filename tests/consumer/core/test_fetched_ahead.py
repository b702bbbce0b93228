"""What is asked of brokers ahead of the caller, and when nothing more is."""

import pytest

from chaffinch.client.addresses import Address
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest
from tests.consumer.core.rig import Rig, records
from tests.consumer.core.test_fetching import P0, asked


def test_the_next_records_are_fetched_meanwhile():
    rig = Rig(**{"max.partition.fetch.bytes": 1000}).assign(0)
    rig.answer_fetch(p0=records(0, b"x" * 600))
    assert asked(rig)[1] == {0: 1}
    rig.answer_fetch(p0=records(1, b"y" * 600))
    assert not rig.pending(FetchRequest)
    assert rig.poll(1) == [(0, b"x" * 600)]
    rig.poll(0)
    assert rig.poll(5) == [(0, b"y" * 600)]
    rig.poll()
    assert asked(rig)[1] == {0: 2}


def test_an_idle_partition_beside_one_that_has_more_is_not_waited_for():
    """Asked alone it is answered after `fetch.max.wait.ms`, and the other one is not asked for until then: 2 MB in half a second."""
    rig = Rig(**{"max.partition.fetch.bytes": 1000}).assign(0, 1)
    for offset in range(2):
        rig.answer_fetch(session=9, p0=records(offset, b"x" * 600))
    assert not rig.pending(FetchRequest)
    assert rig.poll(1) == [(0, b"x" * 600)]
    rig.poll(1)
    assert asked(rig) == (2, {0: 2}, [])  # The session has not forgotten the other one.
    rig.answer_fetch(session=9, p0=records(2, b"x" * 600), p1=records(0, b"y"))
    assert [number for number, _ in rig.poll()] == [0, 1]


@pytest.mark.parametrize("how", ["paused", "elsewhere"])
def test_what_is_kept_of_a_partition_holds_up_only_its_broker_and_only_while_it_is_read(how):
    rig = Rig(**{"max.partition.fetch.bytes": 1000})
    rig.assign(0, 1)
    rig.answer_fetch(session=9, p0=records(0, b"x" * 1100))
    assert not rig.pending(FetchRequest)
    if how == "paused":
        rig.core.subscriptions.of(P0).is_paused = True
    else:
        rig.core.wiring.cluster.learn_node(2, Address("other", 9092))
        rig.core.wiring.cluster.learn_leader(TopicPartition("t", 1), 2, 9)
    rig.advance(0)
    assert asked(rig)[1] == ({1: 0} if how == "elsewhere" else {})
