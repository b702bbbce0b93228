"""The command line against Apache Kafka: `python -m tests.cli` starts one, `python -m tests.cli HOST:PORT` takes one that runs.

Runs what `test_commands.py` runs against the embedded broker. Ends with 1 when a check fails, 0 where Apache Kafka cannot be had.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.cli.commands import CHECKS
from tests.cli.shell import Shell
from tests.interop.apache_kafka import ApacheKafka, kafka_version
from tests.interop.processes import DidNotStart, NotRun


def run_checks(bootstrap_servers: str) -> list[str]:
    """One line for each check that fails."""
    failed = []
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Shell(bootstrap_servers, Path(folder), f"{check.__name__.replace('_', '-')}-{os.getpid()}"))
            except Exception as error:  # A check may meet anything; the next is to run all the same.
                failed.append(f"{check.__name__}: {type(error).__name__}: {error}")
    return failed


def main(arguments: list[str]) -> int:
    """The exit status."""
    try:
        if arguments:
            failed, where = run_checks(arguments[0]), arguments[0]
        else:
            with ApacheKafka() as kafka:
                failed, where = run_checks(kafka.bootstrap_servers), f"Apache Kafka {kafka_version()}"
    except (NotRun, DidNotStart) as reason:
        print(f"the command line against Apache Kafka: not run: {reason}")
        return 0
    for line in failed:
        print(f"fails: {line}", file=sys.stderr)
    print(f"the command line against {where}: {len(CHECKS) - len(failed)} of {len(CHECKS)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
