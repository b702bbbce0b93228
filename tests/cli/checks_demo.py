"""What `chaffinch demo` does on a cluster that runs already."""

from __future__ import annotations

from tests.cli.shell import Shell


def the_demo_tells_its_story_and_takes_its_topics_away(shell: Shell) -> None:
    told = shell.ok("demo", "--json").json
    assert told["records"] == 100
    assert (told["chaffinch"]["written"], told["chaffinch"]["failed"]) == (99, 1)
    assert "INVALID_COMPACTION_KEY" in told["chaffinch"]["error"]
    assert (told["confluent_kafka"]["written"], told["confluent_kafka"]["failed"]) == (0, 100)
    assert shell.bootstrap_servers in shell.ok("demo").lines[0]
    assert not [line for line in shell.ok("topics", "list").lines if line.startswith("chaffinch-demo-")]


CHECKS = [the_demo_tells_its_story_and_takes_its_topics_away]
