"""The Spark format against Apache Kafka: the tests of `make unit` that need a Spark session, with Apache Kafka below them.

    python -m tests.interop.our_spark                                # starts Apache Kafka; some 5 minutes
    python -m tests.interop.our_spark tests/spark/test_spark_read.py -x    # anything that pytest understands, told on the terminal only

The rest as in `our_clients.py`.
"""

from __future__ import annotations

import sys

from tests.interop.our_clients import Table, main
from tests.interop.our_clients_meant import SPARK_PAGES

# Its broker is one of ours, as a process.
_NO_BROKER = ("--ignore=tests/spark/test_spark_killed.py",)
OUR_SPARK = Table(name="the Spark format", suites=("-m", "spark", "tests/spark", *_NO_BROKER), pages=SPARK_PAGES)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], OUR_SPARK))
