"""Where our clients come to another end on Apache Kafka than on our broker: a pattern of the test, why, and in which versions.

Each of them must fail there, unless it is a matter of time. `NOT_RUN_ON_KAFKA`: those that are not run there, and why. `PAGES`,
`SPARK_PAGES`:
the tests that each page lists in its part `seen by make interop`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.interop.other_kafka import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDifference:
    """A difference: `test` as a pattern of its short name, in the versions from `since` up to, and without, `before`."""

    test: str
    why: str
    since: tuple[int, ...] = (0,)
    before: tuple[int, ...] = (99,)
    is_certain: bool = True
    """Else it is a matter of time, and need not fail."""


_CAPPED = (
    "Apache Kafka takes the smaller of min.insync.replicas and the replication factor since 3.7, and writes the record (our "
    "`min.insync.replicas.policy=capped`); there is no error that could be recognised."
)
_NOT_TOLD = (
    "Whether a broker refuses batches where min.insync.replicas is above the replication factor, or takes the smaller of both, Apache "
    "Kafka does not tell: a dry run says both, and goes on."
)
_BY_NAME = (
    "Before 4.1 records are sent to a topic's name, not to its id: that a topic was made anew with fewer partitions is not noticed, and "
    "what was to go to one that is gone waits for it (`delivery.timeout.ms`)."
)
_NO_LIMIT = (
    "Before 3.6 timestamps in the future have no limit of their own, and none is set here: such records are written. (With "
    "`message.timestamp.difference.max.ms` they are refused, and culprits, as everywhere.)"
)
_VERSION_1 = "Before 4.0 clients are told to speak version 1 of transactions, in which their ends leave the epoch as it is."
_UNTOLD = "Before 3.0 a broker does not tell of a transaction that is open (KIP-664), by which these tests see that it was aborted."

_ANEW = (
    "Before 4.1 a topic that is made anew while records are on their way to its name may take a later batch of a producer first, since "
    "it knows none of them; and where a ZooKeeper leads (before 3.3), its name is taken for a while."
)

_NOT_AT_ONCE = (
    "Where a ZooKeeper leads (before 3.3), a broker may take some records by a topic's old options after it has said that they are altered."
)
_NOT_ASKED = (
    "Before 3.0 a coordinator does not tell how its last transaction ended (KIP-664), so the leaders are asked once, not twice, whether "
    "something is open."
)
_NO_LEADER = (
    "Before 3.2 a static member that led the group and comes back is not told that it does (KIP-814): nobody looks for what was added."
)
_MIGRATED = (
    "Apache Kafka lets classic members join a group of the consumer protocol (`group.consumer.migration.policy=bidirectional`); "
    "`chaffinch broker` refuses them."
)
_ALTERED = (
    r"test_sink\.py::test_a_topic_that_changes_between_tasks_and_commit",
    r"test_sink\.py::test_broker_found_culprits_in_compressed_batches\[.*",
    r"test_sink\.py::TestStaging::test_large_dead_letters_of_broker_are_staged\[.*",
    r"test_task_sender\.py::test_rows_rejected_by_broker_become_dead_letters",
    r"test_task_sender\.py::test_rejected_dead_letters_fail_batch",
    r"test_row_handler\.py::test_rows_rejected_by_broker_call_handler\[.*",
    r"test_spark_write\.py::test_topic_limit_change_applies_to_running_stream",
)

EXPECTED = (
    ExpectedDifference(
        test=r"test_groups\.py::TestStaticMembers::test_restarted_leader_finds_partitions_added\[.*", why=_NO_LEADER, before=(3, 2)
    ),
    ExpectedDifference(test=r"test_mixed_groups\.py::test_group_of_the_consumer_protocol_is_named", why=_MIGRATED, since=(4,)),
    ExpectedDifference(test=r"test_producer\.py::TestSend::test_min_insync_above_the_replicas_fails", why=_CAPPED, since=(3, 7)),
    ExpectedDifference(test=r"test_spark_replay\.py::test_dry_run_detects_min_insync_above_replicas", why=_NOT_TOLD),
    ExpectedDifference(
        test=r"test_recreated_topics\.py::test_recreated_topic_with_fewer_partitions_is_detected",
        why=_BY_NAME,
        before=(4, 1),
        is_certain=False,
    ),
    ExpectedDifference(test=r"test_recreated_topics\.py::test_produce_version_on_the_wire\[options0-13\]", why=_BY_NAME, before=(4, 1)),
    ExpectedDifference(test=r"test_recreated_topics\.py::test_produce_version_on_the_wire\[options1-13\]", why=_VERSION_1, before=(4,)),
    ExpectedDifference(test=r"test_recreated_topics\.py::test_produce_version_on_the_wire\[options1-13\]", why=_BY_NAME, before=(4, 1)),
    ExpectedDifference(
        test=r"test_producer_transactions\.py::TestTransactions::test_many_transactions_in_a_row\[2\]", why=_VERSION_1, before=(4,)
    ),
    ExpectedDifference(
        test=r"test_recreated_topics\.py::test_later_records_are_in_the_recreated_topic\[.*", why=_ANEW, before=(4, 1), is_certain=False
    ),
    ExpectedDifference(
        test=r"test_concurrent_changes\.py::test_transaction_that_exceeds_its_timeout_is_aborted_and_fenced", why=_UNTOLD, before=(3,)
    ),
    ExpectedDifference(test=r"test_close_and_failures\.py::TestLeftOpen::test_close_with_timeout_0_aborts\[.*", why=_UNTOLD, before=(3,)),
    ExpectedDifference(test=r"test_close_and_failures\.py::TestLeftOpen::test_close_in_a_callback_aborts\[.*", why=_UNTOLD, before=(3,)),
    ExpectedDifference(
        test=r"test_kip_467_outcomes\.py::test_innocents_arrive_once_and_in_order\[timestamp-(?!none).*", why=_NO_LIMIT, before=(3, 6)
    ),
    ExpectedDifference(
        test=r"test_kip_467_outcomes\.py::test_scenario_has_the_fates_of_its_table\[timestamps-.*", why=_NO_LIMIT, before=(3, 6)
    ),
    ExpectedDifference(test=r"test_kip_467_outcomes\.py::test_each_record_of_one_batch_has_its_own_error", why=_NO_LIMIT, before=(3, 6)),
    ExpectedDifference(
        test=r"test_commit_shell\.py::test_brokers_without_describe_producers_do_not_delay\[.*", why=_NOT_ASKED, before=(3,)
    ),
    *(ExpectedDifference(test=test, why=_NOT_AT_ONCE, before=(3, 3), is_certain=False) for test in _ALTERED),
    ExpectedDifference(
        test=r"test_producer\.py::TestSend::test_timestamps_out_of_range_and_null_keys_in_one_batch_each_get_their_own_error",
        why=_NO_LIMIT,
        before=(3, 6),
    ),
)

_INSIDE = "the test changes what `chaffinch broker` does inside"
_ITS_OWN = "the proxy would refuse Apache Kafka's own WriteTxnMarkers, too"
_ENDED = "the test ends its broker for good"

NOT_RUN_ON_KAFKA: Mapping[str, str] = {
    r"test_commit_shell\.py::test_hanging_transaction_of_earlier_attempt_stays_invisible\[.*": _INSIDE,
    r"test_commit_shell\.py::test_markers_of_committed_transaction_are_written_to_leaders\[.*": _INSIDE,
    r"test_commit_shell\.py::test_short_transaction_commits_if_markers_are_denied\[.*": _ITS_OWN,
    r"test_commit_shell\.py::test_partitions_with_too_large_response_are_requested_one_by_one": _INSIDE,
    r"test_commit_shell\.py::test_brokers_older_than_the_request_do_not_delay": _INSIDE,
    r"test_commit_shell\.py::test_unsupported_codec_is_not_retried": _INSIDE,
    r"test_sink\.py::test_unavailable_broker_is_reported_with_one_time": _ENDED,
    r"test_target\.py::test_unsupported_codec_is_refused_before_tasks\[.*": _INSIDE,
}
"""A pattern of the test's short name -> why no broker of others can have it."""


def reason_not_run(test: str) -> str | None:
    """Why a test is not run on Apache Kafka; None where it is."""
    return next((why for pattern, why in NOT_RUN_ON_KAFKA.items() if re.fullmatch(pattern, test)), None)


def difference(test: str, version: str) -> ExpectedDifference | None:
    """Why a test ends otherwise on this version of Apache Kafka; None where it shall not."""
    number = numbers(version)
    return next((each for each in EXPECTED if each.since <= number < each.before and re.fullmatch(each.test, test)), None)


SPARK_PAGES: dict[str, str] = {"docs/reference/spark-sink.md": r".*"}

PAGES: dict[str, str] = {
    "docs/explanation/kips/135.md": (
        r"(?!.*(null key-none|timestamps\b|no culprit)).*(null key|null_keys|each_record_of_one_batch"
        r"|test_kip_467_outcomes\.py::test_scenario_has_the_fates_of_its_table).*"
    ),
    "docs/explanation/kips/467.md": r"test_kip_467_(fates|outcomes)\.py::.*|.*culprit.*|.*split_until_it_fits.*",
    "docs/explanation/kips/579.md": r".*min_insync.*",
    "docs/explanation/kips/1038.md": r"test_kip_1038(_calls)?\.py::.*|test_producer_examples\.py::TestExample.*",
    "docs/explanation/kips/1050.md": (
        r"test_kip_1050_outcomes\.py::.*|test_producer_transactions\.py::.*|test_transactional_word_count\.py::.*"
        r"|.*InTransaction.*|.*in_a_transaction.*"
    ),
    "docs/reference/producer.md": r"(test_kip_|test_producer|test_close_and_failures|test_futures|test_public_api|test_send_).*",
    "docs/reference/consumer.md": r"(test_groups|test_group_commits|test_mixed_groups|test_reading|test_call_rules|with_java).*",
}
