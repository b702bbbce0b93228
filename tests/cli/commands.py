"""The command line against a cluster: what each command prints and how it ends, as functions of a `Shell` and nothing else.

`CHECKS` run against the embedded broker in `test_commands.py`, and against Apache Kafka wherever its address is handed over: every
check brings topics and names of its own, and holds for both.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.cli import checks_demo, checks_groups, checks_records, checks_topics, checks_transactions
from tests.cli.shell import Shell

CHECKS: list[Callable[[Shell], None]] = [
    *checks_topics.CHECKS,
    *checks_records.CHECKS,
    *checks_groups.CHECKS,
    *checks_transactions.CHECKS,
    *checks_demo.CHECKS,
]
