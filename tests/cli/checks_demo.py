"""What `chaffinch demo` does on a cluster that runs already."""

from __future__ import annotations

from tests.cli.shell import Shell


def demo_prints_outcomes_and_deletes_its_topics(shell: Shell) -> None:
    result = shell.ok("demo", "--json").json
    assert result["records"] == 100
    assert (result["chaffinch"]["written"], result["chaffinch"]["failed"]) == (99, 1)
    assert "INVALID_COMPACTION_KEY" in result["chaffinch"]["error"]
    assert (result["confluent_kafka"]["written"], result["confluent_kafka"]["failed"]) == (0, 100)
    assert shell.bootstrap_servers in shell.ok("demo").lines[0]
    assert not [line for line in shell.ok("topics", "list").lines if line.startswith("chaffinch-demo-")]


CHECKS = [demo_prints_outcomes_and_deletes_its_topics]
