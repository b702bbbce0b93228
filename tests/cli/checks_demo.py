"""What `chaffinch demo` does on a cluster that runs already."""

from __future__ import annotations

from tests.cli.shell import Shell


def demo_prints_outcomes_and_deletes_its_topics(shell: Shell) -> None:
    told = shell.ok("demo", "--json").json
    assert told["records"] == 100
    assert (told["chaffinch"]["written"], told["chaffinch"]["failed"]) == (99, 1)
    assert "INVALID_COMPACTION_KEY" in told["chaffinch"]["error"]
    assert (told["confluent_kafka"]["written"], told["confluent_kafka"]["failed"]) == (0, 100)
    assert shell.bootstrap_servers in shell.ok("demo").lines[0]
    assert not [line for line in shell.ok("topics", "list").lines if line.startswith("chaffinch-demo-")]


CHECKS = [demo_prints_outcomes_and_deletes_its_topics]
