"""Consumer protocol: the bytes of other clients are decoded, and they decode ours."""

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AiokafkaSticky
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as KafkaPythonSticky

from chaffinch.consumer.core import group_protocol as protocol
from chaffinch.consumer.core.group_protocol import MemberSubscription
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.violations import MalformedMessage

A0, A1, B7 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 7)
tps = st.lists(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)), unique=True).map(lambda found: tuple(sorted(found)))

# As Java's ConsumerProtocol writes them: version, topics, user data, owned partitions, generation, rack.
SUBSCRIPTION_0 = "0000 00000001 0001 61 00000002 dead"
SUBSCRIPTION_1 = "0001 00000001 0001 61 ffffffff 00000001 0001 61 00000002 00000000 00000001"
SUBSCRIPTION_3 = "0003 00000001 0001 61 ffffffff 00000001 0001 61 00000002 00000000 00000001 00000005 0002 7231"
# As its StickyAssignor writes what a member had, and in which generation (KIP-341); before KIP-341 without the generation.
STICKY_0 = "00000002 0001 61 00000002 00000000 00000001 0001 62 00000001 00000007"
STICKY_1 = f"{STICKY_0} 00000005"
ASSIGNMENT_1 = "0001 00000002 0001 61 00000002 00000000 00000001 0001 62 00000001 00000007 ffffffff"


def bytes_of(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(
    ("text", "subscription"),
    [
        (SUBSCRIPTION_0, MemberSubscription(topics=("a",), user_data=b"\xde\xad")),
        (SUBSCRIPTION_1, MemberSubscription(topics=("a",), owned=(A0, A1))),
        (SUBSCRIPTION_3, MemberSubscription(topics=("a",), owned=(A0, A1), generation=5, rack="r1")),
        (SUBSCRIPTION_3.replace("0003", "0009", 1) + "1234", MemberSubscription(topics=("a",), owned=(A0, A1), generation=5, rack="r1")),
    ],
)
def test_every_version_is_decoded(text: str, subscription: MemberSubscription) -> None:
    assert protocol.decode_subscription(bytes_of(text)) == subscription


def test_latest_version_is_encoded() -> None:
    subscription = MemberSubscription(topics=("a",), owned=(A1, A0), generation=5, rack="r1")
    assert protocol.encode_subscription(subscription) == bytes_of(SUBSCRIPTION_3)
    assert protocol.encode_assignment([B7, A1, A0])[2:] == bytes_of(ASSIGNMENT_1)[2:]
    assert protocol.decode_assignment(bytes_of(ASSIGNMENT_1)) == (A0, A1, B7)
    assert protocol.decode_assignment(b"") == ()


def test_same_bytes_as_aiokafka() -> None:
    theirs = ConsumerProtocolMemberMetadata.decode(protocol.encode_subscription(MemberSubscription(topics=("b", "a"), user_data=b"x")))
    assert (theirs.subscription, theirs.user_data) == (["a", "b"], b"x")
    given_to_us = ConsumerProtocolMemberAssignment(0, [("a", [0, 1]), ("b", [7])], b"").encode()
    assert protocol.decode_assignment(given_to_us) == (A0, A1, B7)
    assert ConsumerProtocolMemberAssignment.decode(protocol.encode_assignment([A0, B7])).assignment == [("a", [0]), ("b", [7])]


def test_sticky_user_data_of_java() -> None:
    assert protocol.encode_sticky([A0, A1, B7], 5) == bytes_of(STICKY_1)
    assert protocol.encode_sticky([], 6) == bytes_of("00000000 00000006")
    assert protocol.decode_sticky(bytes_of(STICKY_1)) == ((A0, A1, B7), 5)
    assert protocol.decode_sticky(bytes_of(STICKY_0)) == ((A0, A1, B7), -1)
    # Java ignores unreadable user data, and skips bytes after the generation.
    assert protocol.decode_sticky(bytes_of(STICKY_0)[:-1]) == ((), -1)


def test_sticky_user_data_of_aiokafka() -> None:
    theirs = AiokafkaSticky._metadata(["a"], [A0, A1, B7], 5)
    subscription = protocol.decode_subscription(theirs.encode())
    assert (subscription.topics, protocol.decode_sticky(subscription.user_data)[0]) == (("a",), (A0, A1, B7))
    subscription = MemberSubscription(topics=("a",), user_data=protocol.encode_sticky([A0, A1, B7], 5))
    read = AiokafkaSticky.parse_member_metadata(ConsumerProtocolMemberMetadata.decode(protocol.encode_subscription(subscription)))
    assert (read.subscription, read.partitions, read.generation) == (["a"], [A0, A1, B7], 5)


def test_sticky_user_data_of_kafka_python_is_ignored_as_in_java() -> None:
    """Version 3 puts a version before it."""
    subscription = protocol.decode_subscription(KafkaPythonSticky._metadata(["a"], [A0, A1, B7], 5).encode())
    assert subscription.user_data == b"\0\1" + bytes_of(STICKY_1)
    assert protocol.decode_sticky(subscription.user_data) == ((), -1)


@given(tps, st.integers(-1, 99))
def test_sticky_user_data_round_trip(partitions: tuple[TopicPartition, ...], generation: int) -> None:
    assert protocol.decode_sticky(protocol.encode_sticky(partitions, generation)) == (partitions, generation)
    # Without the generation, as members of before KIP-341 wrote it.
    assert protocol.decode_sticky(protocol.encode_sticky(partitions, generation)[:-4]) == (partitions, -1)
    assert protocol.decode_cooperative(protocol.encode_cooperative(generation)) == generation


@pytest.mark.parametrize("data", [None, b"", b"x", b"\x00\x00\x00\x09"])
def test_unreadable_sticky_user_data_is_empty(data: bytes | None) -> None:
    assert protocol.decode_sticky(data) == ((), -1)
    assert protocol.decode_cooperative(data[:3] if data else data) == -1


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff", bytes_of(SUBSCRIPTION_3)[:-1], b"\x00\x00\x7f\xff\xff\xff"])
def test_malformed_subscription_raises(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        protocol.decode_subscription(data)
