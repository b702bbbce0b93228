"""What several leaders say, together."""

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit.operations import HangingTransactions, WriteMarkersResult

PLACES = [TopicPartition("orders", number) for number in range(4)]


def test_merged_result_has_each_reason_once_and_first_code() -> None:
    parts = [
        WriteMarkersResult(done=frozenset(PLACES[:1])),
        WriteMarkersResult(possibly_written=frozenset(PLACES[1:2]), reason="b:1 is away", code=codes.REQUEST_TIMED_OUT),
        WriteMarkersResult(unknown=frozenset(PLACES[2:3]), reason="b:1 is away", code=codes.UNKNOWN_TOPIC_OR_PARTITION),
        WriteMarkersResult(denied=frozenset(PLACES[3:]), refused=codes.CLUSTER_AUTHORIZATION_FAILED, reason="b:2 says no"),
        WriteMarkersResult(refused=codes.UNSUPPORTED_VERSION),
    ]
    assert WriteMarkersResult.merged(parts) == WriteMarkersResult(
        done=frozenset(PLACES[:1]),
        possibly_written=frozenset(PLACES[1:2]),
        unknown=frozenset(PLACES[2:3]),
        denied=frozenset(PLACES[3:]),
        refused=codes.CLUSTER_AUTHORIZATION_FAILED,
        reason="b:1 is away; b:2 says no",
        code=codes.REQUEST_TIMED_OUT,
    )


def test_merged_result_of_no_leaders_is_empty() -> None:
    assert HangingTransactions.merged([]) == HangingTransactions()
    assert HangingTransactions.merged(
        [HangingTransactions(answered=frozenset(PLACES[:2])), HangingTransactions(answered=frozenset(PLACES[1:]))]
    ).answered == frozenset(PLACES)
