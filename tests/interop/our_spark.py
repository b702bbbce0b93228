"""The Spark format against Apache Kafka: the tests of its sink and source that need a broker, with a Spark session and without.

    python -m tests.interop.our_spark                                # starts Apache Kafka; some 5 minutes
    python -m tests.interop.our_spark tests/spark/test_spark_read.py -x    # any pytest arguments; results go to the terminal only

The rest as in `our_clients.py`.
"""

from __future__ import annotations

import re
import sys

from tests.interop.expected_differences import SPARK_PAGES
from tests.interop.installing import ROOT
from tests.interop.our_clients import Table, main

# Made in the file, or in a `conftest.py`, whose fixtures are called so.
_BROKER = re.compile(r"EmbeddedBroker|broker\.bootstrap_servers|def \w+\(.*\bkafka\b")


def with_a_broker() -> tuple[str, ...]:
    """The files of tests that have a broker in this process; that of `test_spark_killed.py` is another one, ours."""
    files = sorted((ROOT / "tests" / "spark").rglob("test_*.py"))
    return tuple(str(file.relative_to(ROOT)) for file in files if _BROKER.search(file.read_text(encoding="utf-8")))


OUR_SPARK = Table(name="the Spark format", suites=with_a_broker(), pages=SPARK_PAGES)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], OUR_SPARK))
