"""`make differential`: the same requests to Apache Kafka and to `chaffinch broker`; every difference is intended, or a defect.

Prints what differs and is not in `expected_differences.py`, and entries of `expected_differences.py` that no longer differ; exits with 1
for either.
`--apache HOST:PORT` uses a fresh Apache Kafka that runs already, `--version` starts another one than the pinned. `--seeds N` asks
random sequences beside the fixed cases, from `--first` on; with `--only` nothing fixed but scenarios of that name (`--only -` for none).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.brokers import chaffinch_broker
from tests.interop.apache_kafka import kafka_version
from tests.interop.differential import (
    cases_groups,
    cases_readers,
    cases_records,
    cases_topics,
    cases_transaction_states,
    cases_transactions,
)
from tests.interop.differential.comparison import differences
from tests.interop.differential.expected_differences import EXPECTED, compare_with, expected_difference
from tests.interop.differential.peer import Peer
from tests.interop.differential.random_sequences import Tried, try_all
from tests.interop.other_kafka import apache_kafka

SEEDS = 60
SETTINGS = {"group.consumer.assignment.interval.ms": "0"}
"""Apache Kafka settings: a joining member gets its partitions immediately, as here."""
PARTS = (cases_topics, cases_records, cases_readers, cases_groups, cases_transactions, cases_transaction_states)
SCENARIOS = (*(scenario for part in PARTS for scenario in part.SCENARIOS), *cases_topics.LAST_SCENARIOS)


@contextmanager
def apache(address: str | None, version: str) -> Iterator[str]:
    if address:
        yield address
        return
    with apache_kafka(version, SETTINGS) as kafka:
        yield kafka.bootstrap_servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache", help="HOST:PORT of a fresh Apache Kafka")
    parser.add_argument("--version", default=kafka_version(), help="of the Apache Kafka that is compared with")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many random sequences")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    compare_with(arguments.version)
    with (
        apache(arguments.apache, arguments.version) as their_servers,
        tempfile.TemporaryDirectory() as folder,
        chaffinch_broker(folder, config=["group.initial.rebalance.delay.ms=0"]) as broker,
    ):
        theirs, ours = Peer("Apache Kafka", their_servers), Peer("chaffinch", broker.bootstrap_servers)
        for scenario in SCENARIOS:
            if arguments.only in scenario.__name__:
                for peer in (theirs, ours):
                    scenario(peer)
        tried = try_all((theirs, ours), range(arguments.first, arguments.first + arguments.seeds))
    return report(theirs, ours, tried, is_whole=not arguments.only)


def report(theirs: Peer, ours: Peer, tried: Tried, *, is_whole: bool) -> int:
    """Print unintended differences, and listed ones that no longer occur; returns the exit status."""
    unused, count = {pattern: why for pattern, why in EXPECTED.items() if pattern not in tried.used}, tried.differences
    for label, answer in theirs.answers.items():
        for path, one, other in differences(answer, ours.answers[label]):
            place = f"{label}: {path}"
            pattern = expected_difference(place, (path, one, other))
            if pattern is None:
                count += 1
                print(f"{place}: Apache Kafka {one!r:.150}, chaffinch {other!r:.150}")
            else:
                unused.pop(pattern, None)
    stale = [pattern for pattern in unused if is_whole and not pattern.startswith("random")]  # Those depend on the seeds.
    for pattern in stale:
        print(f"listed as intended, but nothing differs: {pattern}")
    asked = len(theirs.answers) + tried.requests
    print(f"{asked} requests, {count} unintended differences, {len(EXPECTED) - len(unused)} kinds that are")
    return 1 if count or stale else 0


if __name__ == "__main__":
    sys.exit(main())
