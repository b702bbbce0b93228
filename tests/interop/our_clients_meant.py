"""Where our clients come to another end on Apache Kafka than on our broker: a pattern of the test -> why. Each of them must fail there.

`PAGES`, `SPARK_PAGES`: which tests each page tells of, in its part `seen by make interop`.
"""

from __future__ import annotations

_CAPPED = (
    "Apache Kafka 4.3 takes the smaller of min.insync.replicas and the replication factor, and writes the record (our "
    "`min.insync.replicas.policy=capped`); there is no error that could be recognised."
)

MEANT: dict[str, str] = {
    r"test_producer\.py::TestSend::test_min_insync_above_the_replicas": _CAPPED,
    r"test_spark_replay\.py::test_a_dry_run_finds_min_insync_above_the_replicas": _CAPPED,
}

SPARK_PAGES: dict[str, str] = {"docs/spark.md": r"test_spark_.*"}

PAGES: dict[str, str] = {
    "docs/kips/135.md": (
        r"(?!.*(null key-none|timestamps\b|no culprit)).*(null key|null_keys|several_kinds|test_kip_467_outcomes\.py::test_scenario).*"
    ),
    "docs/kips/467.md": r"test_kip_467_outcomes\.py::.*|.*culprit.*|.*split_until_it_fits.*",
    "docs/kips/579.md": r".*min_insync.*",
    "docs/kips/1038.md": r"test_kip_1038\.py::.*|test_producer_examples\.py::TestExample.*",
    "docs/kips/1050.md": r"test_producer_transactions\.py::.*|test_transactional_word_count\.py::.*|.*InTransaction.*|.*in_a_transaction.*",
    "docs/producer.md": r"(test_kip_|test_producer|test_endings|test_futures|test_public_face|test_send_).*",
    "docs/consumer.md": r"(test_groups|test_reading|test_rules_of_calls|beside_java).*",
}
