"""Intended differences, with their reasons: a pattern of `label: path` -> why. Printed into docs/reference/differences.md.

A pattern may go on with `: Apache Kafka's value, ours`. The first pattern that fits counts. An entry that nothing needs any more is
reported: the list says what is true.
"""

from __future__ import annotations

import re

from tests.interop.other_kafka import numbers

EXPECTED: dict[str, str] = {
    r".*error_message": "Every refusal carries its reason where the protocol has room for one; Apache Kafka often leaves it out.",
    r".*partition_responses\[\d+\]\.log_start_offset": (
        "The log start offset is returned whenever the partition is known; Apache Kafka omits it if it refuses before reading the log."
    ),
    r"ApiVersions v\d: api_keys\[17\]\.min_version": (
        "SaslHandshake 0, after which tokens come without headers as before KIP-152, is not served."
    ),
    r"ApiVersions v\d: (api_keys\[\d+\]|(supported|finalized)_features.*)": (
        "Administration of quorums, replicas, quotas, delegation tokens, share and streams groups and client metrics is not served; "
        "features of Chaffinch's own are announced."
    ),
    r"produce: null keys v7: .*error_code": "KIP-467: versions of Produce before 8 get INVALID_REQUEST in place of INVALID_RECORD.",
    r"produce: (codec 5|claims gzip): .*error_code": (
        "Apache Kafka fails with UNKNOWN_SERVER_ERROR; the batch is at fault, INVALID_RECORD says so."
    ),
    r"produce: bytes left over: .*": (
        "Apache Kafka stores the batch and drops the bytes behind it; bytes that no reader could read back are refused."
    ),
    r"produce: claims append time: .*": (
        "KIP-467 has LogAppendTime set by a producer refused; Apache Kafka rewrites it when the topic has CreateTime."
    ),
    r"produce: claims a delete horizon: .*": (
        "Apache Kafka stores the batch, and its cleaner drops the tombstones in it at once; the bit is for the cleaner to set."
    ),
    r"produce: value length -2: .*": (
        "Apache Kafka stores the record and reads null, but clients of librdkafka never get past it; lengths below -1 are refused."
    ),
    r"alter: unknown operation: .*error_code": "Apache Kafka fails with UNKNOWN_SERVER_ERROR; INVALID_REQUEST says whose fault it is.",
    r"options: unknown to brokers: .*error_code": (
        "An unknown broker option is refused, as an unknown topic option is by both; Apache Kafka stores it for plugins."
    ),
    r"trimmed: place -3.*offset": (
        "The record with the latest time is one that can be read; Apache Kafka names one that DeleteRecords has deleted."
    ),
    r"metadata: created on demand: .*": "A topic that is created on demand is there at once; Apache Kafka answers before it is.",
    r"create: collides: .*": "Two names of one request that collide are refused as they are in two requests; Apache Kafka creates both.",
    r"partitions: 10,001 more: .*error_code": (
        "Apache Kafka fails with UNKNOWN_SERVER_ERROR; POLICY_VIOLATION, as for CreateTopics, says that there are too many."
    ),
    r".*message\.format\.version.*": "KIP-467's rule for old formats needs the option, which Apache Kafka has dropped.",
    r".*configs\[min\.insync\.replicas\].*": (
        "Apache Kafka with eligible leader replicas sets it for the cluster when it is formatted; here it has its default."
    ),
    r"state v\d: \w+: send.*base_offset": (
        "InitProducerId with an older epoch is refused while a newer producer's transaction is open; Apache Kafka refuses it too, "
        "but aborts that transaction first, so its partition has one marker more."
    ),
    r"random Produce .*error_code: 48, (87|32|10)|random Produce .*record_errors\[.*: 'nothing', .*": (
        "Errors of records are reported before errors of the transaction: such records can never be stored, whatever joins it."
    ),
    r"random (OffsetCommit .*: 25, (22|69)|OffsetDelete .*(: 0, 69|topics\[[^\]]*\]: .*, 'nothing')|DeleteGroups .*: 0, 69"
    r"|JoinGroup .*: 23, 25"
    r"|DescribeGroups .*(group_state: 'Empty', 'Dead'|error_code: 0, 69))": (
        "A group that only ever handed out an id goes when that member does, one whose only commit was refused never comes to be; "
        "Apache Kafka keeps them empty until it looks for expired offsets."
    ),
    r"random DescribeGroups .*(group_state: 'Dead', .*|protocol_type: '', .*|members.*: 'nothing', .*|error_code: 69, 0)": (
        "A group is there at once; Apache Kafka shows it a moment later."
    ),
    r"random ConsumerGroupHeartbeat .*(error_code: 111, 0|member_id: None, '.*'|assignment: None, .*)": (
        "A static member that joins again under its own id, its response lost, goes on; Apache Kafka refuses it like another process."
    ),
    r"random ((JoinGroup|ConsumerGroupHeartbeat) .*error_code: (79|-1|0), (23|69)|JoinGroup .*member_id: '.*', '.*')": (
        "A group of members of both protocols is not supported: the other kind may join when the group is empty."
    ),
    r"random DescribeTransactions .*topics\[__consumer_offsets\].*": (
        "Offsets are kept beside the topics: no partition of theirs joins a transaction."
    ),
    r"beat: classic join: .*": "A group of members of both protocols is not supported: the other kind may join when the group is empty.",
}

SINCE: dict[tuple[int, ...], dict[str, str]] = {
    (4, 4): {
        r"ApiVersions v\d: api_keys\[(18|28|42)\]\.max_version": (
            "Apache Kafka 4.4 hears which cluster and node a client means (KIP-1242), takes offsets of a transaction by a topic's id "
            "(KIP-1319), and says why a group was not deleted."
        ),
        r".*configs\[(errors\.deadletterqueue\.group\.enable|max\.decompressed\.message\.bytes|remote\.copy\.lag\.(bytes|ms))\]": (
            "Options of topics that Apache Kafka 4.4 has added."
        ),
    }
}
"""What newer versions than the pinned one have, from which on: `compare_with` adds it."""


def compare_with(version: str) -> None:
    """Accept the additions of this version of Apache Kafka as intended, too."""
    for since, more in SINCE.items():
        if numbers(version) >= since:
            EXPECTED.update(more)


def expected_difference(place: str, difference: tuple[str, object, object]) -> str | None:
    """The pattern that says why two brokers differ in this; None: nothing does."""
    _, one, other = difference
    valued = f"{place}: {one!r:.60}, {other!r:.60}"
    return next((pattern for pattern in EXPECTED if re.fullmatch(pattern, place) or re.fullmatch(pattern, valued)), None)
