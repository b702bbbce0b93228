"""What several leaders say, together."""

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.operations import Remains, Told

PLACES = [TopicPartition("orders", number) for number in range(4)]


def test_each_reason_is_named_once_and_the_first_code_counts() -> None:
    parts = [
        Told(done=frozenset(PLACES[:1])),
        Told(unsure=frozenset(PLACES[1:2]), reason="b:1 is away", code=codes.REQUEST_TIMED_OUT),
        Told(unknown=frozenset(PLACES[2:3]), reason="b:1 is away", code=codes.UNKNOWN_TOPIC_OR_PARTITION),
        Told(not_ours=frozenset(PLACES[3:]), refused=codes.CLUSTER_AUTHORIZATION_FAILED, reason="b:2 says no"),
        Told(refused=codes.UNSUPPORTED_VERSION),
    ]
    assert Told.of_all(parts) == Told(
        done=frozenset(PLACES[:1]),
        unsure=frozenset(PLACES[1:2]),
        unknown=frozenset(PLACES[2:3]),
        not_ours=frozenset(PLACES[3:]),
        refused=codes.CLUSTER_AUTHORIZATION_FAILED,
        reason="b:1 is away; b:2 says no",
        code=codes.REQUEST_TIMED_OUT,
    )


def test_where_nobody_was_asked_nothing_is_said() -> None:
    assert Remains.of_all([]) == Remains()
    assert Remains.of_all([Remains(asked=frozenset(PLACES[:2])), Remains(asked=frozenset(PLACES[1:]))]).asked == frozenset(PLACES)
