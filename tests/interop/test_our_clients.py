"""What the run of our clients against Apache Kafka makes of the ends of its tests."""

from __future__ import annotations

import re

from tests.interop.apache_kafka import kafka_version
from tests.interop.installing import ROOT
from tests.interop.our_clients import End, page_part
from tests.interop.our_clients_meant import MEANT, PAGES, SPARK_PAGES

IN_SYNC = "test_producer.py::TestSend::test_min_insync_above_the_replicas"


def test_a_page_counts_its_own_tests_and_says_why_one_differs() -> None:
    ends = {
        "test_x.py::test_a[null key-one]": End.SAME,
        "test_x.py::test_b[null key-all]": End.SAME,
        "test_x.py::test_c[null key-some]": End.NOT_OFFERED,
        "test_x.py::test_d": End.SAME,
        IN_SYNC: End.MEANT,
    }
    text = page_part(ends, ".*null key.*")
    assert text.startswith(f"Apache Kafka {kafka_version()}: 2 tests come to the same end as on `chaffinch broker`, none to another")
    assert "1 more need" in text
    text = page_part(ends, ".*min_insync.*")
    assert "1 to another, as is meant." in text
    assert "- Apache Kafka 4.3 takes the smaller of min.insync.replicas" in text


def test_every_page_has_its_part() -> None:
    for name in (*PAGES, *SPARK_PAGES):
        assert (ROOT / name).read_text(encoding="utf-8").count("<!-- seen by make interop -->") == 1, name


def test_what_is_meant_to_differ_is_a_test() -> None:
    """A name that is gone would be a difference that nobody sees."""
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert {pattern.rpartition("::")[2].partition("\\[")[0] for pattern in MEANT} <= defined
