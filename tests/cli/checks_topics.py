"""What `chaffinch topics` does against any cluster."""

from __future__ import annotations

from tests.cli.shell import Shell


def topic_is_created_listed_and_deleted(shell: Shell) -> None:
    name = shell.name("life")
    created = shell.ok("topics", "create", "--topic", name, "--partitions", "3", "--config", "cleanup.policy=compact")
    assert created.out == f"created {name}: 3 partitions, replication factor 1\n"
    assert name in shell.ok("topics", "list").lines
    assert name in [topic["topic"] for topic in shell.ok("topics", "list", "--json", "--exclude-internal").json]
    shell.refused("topics", "create", "--topic", name, says="TOPIC_ALREADY_EXISTS")
    again = ("topics", "create", "--topic", name, "--partitions", "5", "--if-not-exists")
    assert shell.ok(*again).out == ""
    assert shell.ok(*again, "--json").json["partition_count"] == 3
    assert shell.ok("topics", "delete", "--topic", name).out == f"deleted {name}\n"
    shell.refused("topics", "delete", "--topic", name, says=f"topic '{name}' does not exist")
    assert shell.ok("topics", "delete", "--topic", name, "--if-exists").out == ""


def describe_shows_non_default_options(shell: Shell) -> None:
    name = shell.name("described")
    shell.ok("topics", "create", "--topic", name, "--partitions", "2", "--config", "max.message.bytes=5000")
    (described,) = shell.ok("topics", "describe", "--topic", name, "--json").json
    assert (described["topic"], described["partition_count"], described["replication_factor"]) == (name, 2, 1)
    assert described["configs"]["max.message.bytes"] == {"value": "5000", "source": "topic"}
    assert "retention.ms" not in described["configs"]
    assert [(part["first_offset"], part["end_offset"], len(part["in_sync"])) for part in described["partitions"]] == [(0, 0, 1)] * 2
    lines = shell.ok("topics", "describe", "--topic", name).lines
    assert lines[0].startswith(f"{name}: 2 partitions, replication factor 1, id {described['id']}")
    assert "  max.message.bytes=5000" in lines
    assert [line.split()[0] for line in lines[-3:]] == ["partition", "0", "1"]


def alter_sets_and_resets_options(shell: Shell) -> None:
    name = shell.name("altered")
    shell.ok("topics", "create", "--topic", name, "--partitions", "1", "--config", "max.message.bytes=5000")
    altered = shell.ok(
        "topics", "alter", "--topic", name, "--config", "cleanup.policy=compact", "--delete-config", "max.message.bytes", "--json"
    )
    assert altered.json["configs"].get("cleanup.policy") == {"value": "compact", "source": "topic"}
    assert "max.message.bytes" not in altered.json["configs"]
    shell.refused("topics", "alter", "--topic", name, "--config", "cleanup.policy=compost", says="INVALID_CONFIG")
    shell.refused("topics", "alter", "--topic", name, says="nothing to alter", status=2)
    twice = ("--config", "cleanup.policy=compact", "--delete-config", "cleanup.policy")
    shell.refused("topics", "alter", "--topic", name, *twice, says="cleanup.policy", status=2)


def alter_adds_partitions(shell: Shell) -> None:
    name = shell.name("wider")
    shell.ok("topics", "create", "--topic", name, "--partitions", "1")
    altered = shell.ok("topics", "alter", "--topic", name, "--partitions", "3")
    assert altered.out == f"altered {name}: 3 partitions, replication factor 1\n"
    shell.ok("produce", "--topic", name, "--format", "json", stdin=b'{"value":"there","partition":2}\n')
    assert shell.ok("consume", "--topic", name, "--partition", "2").lines == ["there"]
    narrower = ("topics", "alter", "--topic", name, "--partitions", "2")
    shell.refused(*narrower, says="INVALID_PARTITIONS")
    shell.refused(*narrower, "--config", "retention.ms=5", says="INVALID_PARTITIONS")
    (described,) = shell.ok("topics", "describe", "--topic", name, "--json").json
    assert "retention.ms" not in described["configs"], "one half of it was done"


def describe_warns_of_min_insync_above_replication(shell: Shell) -> None:
    name = shell.name("mismatch")
    created = shell("topics", "create", "--topic", name, "--partitions", "1", "--config", "min.insync.replicas=2")
    assert created.status == 0
    (line,) = created.err.splitlines()
    assert line.startswith(f"chaffinch: warning: min.insync.replicas is 2 and topic '{name}' has 1 replica")
    (described,) = shell.ok("topics", "describe", "--topic", name, "--json").json
    (warning,) = described["warnings"]
    assert "KIP-579" in warning
    assert "set min.insync.replicas to 1 or less" in warning
    assert f"  warning: {warning}" in shell.ok("topics", "describe", "--topic", name).lines


def unknown_topics_are_refused_with_nearest_name(shell: Shell) -> None:
    name = shell.name("orders")
    shell.ok("topics", "create", "--topic", name)
    for creating in ("create", "alter"):
        too_many = ("--topic", name, "--partitions", str(2**31))
        shell.refused("topics", creating, *too_many, says=f"--partitions: '{2**31}' is more than {2**31 - 1}", status=2)
    wrong = shell.name("ordres")
    for command in (["describe"], ["delete"], ["alter", "--partitions", "2"]):
        shell.refused("topics", command[0], "--topic", wrong, *command[1:], says=f"'{wrong}' does not exist; the nearest is '{name}'")


CHECKS = [
    topic_is_created_listed_and_deleted,
    describe_shows_non_default_options,
    alter_sets_and_resets_options,
    alter_adds_partitions,
    describe_warns_of_min_insync_above_replication,
    unknown_topics_are_refused_with_nearest_name,
]
