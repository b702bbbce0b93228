"""What the run of our clients against Apache Kafka makes of the ends of its tests."""

from __future__ import annotations

from tests.interop.apache_kafka import kafka_version
from tests.interop.expected_differences import (
    EXPECTED,
    NOT_RUN_ON_KAFKA,
    PAGES,
    SPARK_PAGES,
    ExpectedDifference,
    difference,
    reason_not_run,
)
from tests.interop.installing import ROOT
from tests.interop.other_kafka import numbers, uses_kraft
from tests.interop.our_clients import OUR_CLIENTS, End, page_part
from tests.interop.our_spark import OUR_SPARK
from tests.interop.versions import PAGE, Seen, read_counts
from tests.interop.versions import page_part as versions_part

IN_SYNC = "test_producer.py::TestSend::test_min_insync_above_the_replicas_fails"


def test_page_counts_its_tests_and_explains_differences() -> None:
    ends = {
        "test_x.py::test_a[null key-one]": End.SAME,
        "test_x.py::test_b[null key-all]": End.SAME,
        "test_x.py::test_c[null key-some]": End.NOT_OFFERED,
        "test_x.py::test_d": End.SAME,
        IN_SYNC: End.EXPECTED,
    }
    text = page_part(ends, ".*null key.*")
    assert text.startswith(f"Apache Kafka {kafka_version()}: 2 tests come to the same end as on `chaffinch broker`, none to another")
    assert "1 more need" in text
    text = page_part(ends, ".*min_insync.*")
    assert "1 to another, as is meant." in text
    assert "- Apache Kafka takes the smaller of min.insync.replicas" in text


def test_every_page_has_a_generated_part() -> None:
    for name in (*PAGES, *SPARK_PAGES):
        assert (ROOT / name).read_text(encoding="utf-8").count("<!-- seen by make interop -->") == 1, name


def test_expected_differences_name_existing_tests() -> None:
    """A name that is gone would be an unnoticed difference."""
    for pattern in (*(each.test for each in EXPECTED), *NOT_RUN_ON_KAFKA):
        assert is_defined(pattern.partition("\\[")[0].replace("\\", "")), pattern


def test_deselected_tests_exist_under_their_full_names() -> None:
    deselected = [argument.partition("=")[2] for argument in OUR_CLIENTS.suites if argument.startswith("--deselect=")]
    assert deselected
    assert all(map(is_defined, deselected)), deselected


def is_defined(node_id: str) -> bool:
    """Whether a file of the tests has the class, if there is one, and the function of a node id without parameters."""
    file, *classes, function = node_id.rpartition("/")[2].split("::")
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(file)]
    return any(f"def {function}(" in text and all(f"class {name}:" in text for name in classes) for text in texts)


def test_spark_suites_with_a_broker_run_on_apache_kafka() -> None:
    """Whether a test makes it, or asks for a fixture that does."""
    chosen = {suite.rpartition("/")[2] for suite in OUR_SPARK.suites}
    assert {"test_sink.py", "test_stream_reader.py", "test_stream_limits.py", "test_replay_plan.py", "test_spark_write.py"} <= chosen
    assert not {"test_protocol.py", "test_offset_ranges.py", "test_spark_killed.py"} & chosen


def test_difference_applies_to_its_versions_only() -> None:
    assert [bool(difference(IN_SYNC, version)) for version in ("2.8.2", "3.6.2", "3.7.0", "4.3.1")] == [False, False, True, True]
    assert not difference("test_producer.py::TestSend::test_another", "4.3.1")


def test_skipped_tests_exist_under_their_full_names() -> None:
    assert reason_not_run("test_sink.py::test_unavailable_broker_is_reported_with_one_time")
    assert not reason_not_run("test_sink.py::test_unavailable_broker_is_reported_with_one_time_more")
    assert not reason_not_run("test_target.py::test_response_without_versions_refuses_no_codec[an error]")


def test_versions_page_counts_equal_results_and_lists_differences() -> None:
    output = "1 passed in 2 s\nour clients on Apache Kafka 2.8.2: 72 passed\nour clients on Apache Kafka 2.8.2: 2 failed, as it is meant\n"
    output += (
        "our clients on Apache Kafka 2.8.2: 9 asks for what Apache Kafka does not offer\nour clients on Apache Kafka 2.8.2: 1 failed\n"
    )
    counts = read_counts(output)
    assert counts == {End.SAME: 72, End.EXPECTED: 2, End.NOT_OFFERED: 9, End.WRONG: 1}
    seen = {"2.8.2": [Seen(succeeded=False, counts=counts), Seen(succeeded=True, counts=read_counts("not run"))]}
    text = versions_part(
        seen, [ExpectedDifference(test="x", why="So it is.", since=(3, 7)), ExpectedDifference(test="y", why="So it was.", before=(4, 1))]
    )
    assert "| 2.8.2 | by ZooKeeper | 72 of 75 | not run |\n" in text
    assert text.endswith("\n\n- So it is.\n- So it was.\n")
    assert PAGE.read_text(encoding="utf-8").count("<!-- seen by make versions -->") == 1


def test_versions_are_in_the_order_of_their_numbers() -> None:
    assert sorted(("4.10.0", "4.4.0", "3.9.1"), key=numbers) == ["3.9.1", "4.4.0", "4.10.0"]
    assert [uses_kraft(version) for version in ("2.8.2", "3.2.3", "3.3.2", "4.4.0")] == [False, False, True, True]
