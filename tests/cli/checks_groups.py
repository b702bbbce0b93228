"""What `chaffinch groups` does against any cluster: simple groups, groups with members of both protocols, and their offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer

from tests.cli.checks_records import TIME_MS, topic_of
from tests.cli.shell import Shell

POLL_S = 0.2
POLLS_MAX = 150


def with_offsets(shell: Shell, name: str, *, count: int = 6) -> tuple[str, str]:
    """A topic with two partitions and `count` records in turn, and a group that has read four of them, two in each."""
    topic, group = topic_of(shell, name, partitions=2), shell.name(f"{name}-group")
    rows = [{"value": str(n), "timestamp": TIME_MS + n, "partition": n % 2} for n in range(count)]
    shell.ok("produce", "--topic", topic, "--format", "json", stdin="".join(f"{json.dumps(row)}\n" for row in rows).encode())
    for partition in ("0", "1"):
        shell.ok("consume", "--topic", topic, "--group", group, "--partition", partition, "--max-messages", "2")
    return topic, group


@contextmanager
def member(shell: Shell, topic: str, group: str, protocol: str) -> Iterator[Consumer]:
    """A consumer that is in its group and has its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": shell.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in range(POLLS_MAX):
            consumer.poll(POLL_S)
            if consumer.assignment():
                break
        assert consumer.assignment(), "the consumer was given no partitions"
        yield consumer
    finally:
        consumer.close()


def offsets_of(shell: Shell, group: str) -> dict[int, tuple[Any, Any, Any]]:
    (described,) = shell.ok("groups", "describe", "--group", group, "--json").json
    return {entry["partition"]: (entry["committed"], entry["end"], entry["lag"]) for entry in described["offsets"]}


def simple_groups_are_listed_described_and_deleted(shell: Shell) -> None:
    topic, group = with_offsets(shell, "simple")
    listed = {entry["group"]: entry for entry in shell.ok("groups", "list", "--json").json}
    assert (listed[group]["state"], listed[group]["type"]) == ("Empty", "classic")
    assert group in [line.split()[0] for line in shell.ok("groups", "list").lines[1:]]
    assert group in [line.split()[0] for line in shell.ok("groups", "list", "--state", "empty", "--type", "classic").lines[1:]]
    assert group not in shell.ok("groups", "list", "--state", "stable").out
    shell.refused("groups", "list", "--state", "Emptee", says="--state 'Emptee': it must be one of PreparingRebalance, ", status=2)
    shell.refused("groups", "list", "--type", "foo", says="--type 'foo': it must be one of classic, consumer, share, streams", status=2)
    assert offsets_of(shell, group) == {0: (2, 3, 1), 1: (2, 3, 1)}
    lines = shell.ok("groups", "describe", "--group", group).lines
    assert lines[0].startswith(f"{group}: classic, Empty")
    assert lines[-1].split() == [topic, "1", "2", "3", "1", "-"]
    assert shell.ok("groups", "delete", "--group", group).out == f"deleted {group}\n"
    shell.refused("groups", "describe", "--group", group, says=f"group '{group}' does not exist")
    shell.refused("groups", "delete", "--group", group, says=f"group '{group}' does not exist")


def unknown_group_is_refused_with_nearest_name(shell: Shell) -> None:
    _, group = with_offsets(shell, "near")
    shell.refused("groups", "describe", "--group", f"{group}s", says=f"the nearest is '{group}'")


def offsets_are_reset_only_with_execute(shell: Shell) -> None:
    topic, group = with_offsets(shell, "reset")
    cases = [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [3, 3]),
        (("--to-current",), [2, 2]),
        (("--to-offset", "1"), [1, 1]),
        (("--shift-by", "-1"), [1, 1]),
        (("--to-datetime", str(TIME_MS + 3)), [2, 1]),
        (("--to-datetime", "2023-11-14T22:13:20.003"), [2, 1]),
        (("--by-duration", "PT1H"), [3, 3]),
    ]
    for arguments, after in cases:
        plan = shell.ok("groups", "reset-offsets", "--group", group, "--topic", topic, *arguments, "--json").json
        assert (plan["is_done"], [entry["before"] for entry in plan["offsets"]]) == (False, [2, 2])
        assert [entry["after"] for entry in plan["offsets"]] == after, arguments
    for arguments, after, says in [
        (("--to-offset", "99"), [3, 3], "has no offset 99: its end offset 3 is used"),
        (("--shift-by", "-9"), [0, 0], "has no offset -7: its first offset 0 is used"),
    ]:
        ended = shell("groups", "reset-offsets", "--group", group, "--topic", topic, *arguments, "--json")
        assert (ended.status, [entry["after"] for entry in ended.json["offsets"]]) == (0, after)
        assert ended.err.splitlines() == [f"chaffinch: warning: {topic}-{partition} {says}" for partition in (0, 1)]
    assert {partition: committed for partition, (committed, _, _) in offsets_of(shell, group).items()} == {0: 2, 1: 2}
    said = shell.ok("groups", "reset-offsets", "--group", group, "--topic", f"{topic}:1", "--to-earliest").lines
    assert [line.split() for line in said[1:-1]] == [[topic, "1", "2", "0"]]
    assert "--execute" in said[-1]
    done = shell.ok("groups", "reset-offsets", "--group", group, "--topic", f"{topic}:1", "--to-earliest", "--execute")
    assert "--execute" not in done.out
    assert offsets_of(shell, group) == {0: (2, 3, 1), 1: (0, 3, 3)}
    shell.ok("groups", "reset-offsets", "--group", group, "--all-topics", "--to-latest", "--execute")
    assert offsets_of(shell, group) == {0: (3, 3, 0), 1: (3, 3, 0)}


def incomplete_or_contradicting_reset_is_refused(shell: Shell) -> None:
    topic, group = with_offsets(shell, "unclear")
    command = ("groups", "reset-offsets", "--group", group)
    shell.refused(*command, "--topic", topic, says="no unique target", status=2)
    shell.refused(*command, "--topic", topic, "--to-latest", "--to-earliest", says="--to-earliest, --to-latest", status=2)
    shell.refused(*command, "--to-latest", says="no partitions given", status=2)
    for name in ("reset-offsets", "delete-offsets"):
        shell.refused("groups", name, "--group", "", "--topic", topic, says="--group is empty", status=2)
    both = "--topic and --all-topics contradict each other: give one"
    shell.refused(*command, "--topic", topic, "--all-topics", "--to-latest", says=both, status=2)
    shell.refused(*command, "--topic", f"{topic}:x", "--to-latest", says="NAME:0,1,2", status=2)
    shell.refused(*command, "--topic", f"{topic}:7", "--to-latest", says="partitions 0 to 1, but not 7", status=2)
    shell.refused(*command, "--topic", topic, "--by-duration", "7 days", says="P7D", status=2)
    shell.refused(*command, "--topic", topic, "--by-duration", "P99999D", says="before 1970", status=2)
    shell.refused(*command, "--topic", topic, "--to-datetime", "1969-07-20T20:17:00Z", says="before 1970", status=2)


def partitions_are_selected_singly_or_by_topic(shell: Shell) -> None:
    topic, group = with_offsets(shell, "named")
    for named in ([f"{topic}:0", f"{topic}:1"], [f"{topic}:1", topic], [topic, f"{topic}:0"], [f"{topic}:0,1,0"]):
        arguments = [word for text in named for word in ("--topic", text)]
        plan = shell.ok("groups", "reset-offsets", "--group", group, *arguments, "--to-earliest", "--json").json
        assert [entry["partition"] for entry in plan["offsets"]] == [0, 1], named


def reset_warns_of_partitions_without_offset(shell: Shell) -> None:
    topic, group = with_offsets(shell, "nothing")
    shell.ok("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:1")
    ended = shell("groups", "reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-1", "--json")
    assert (ended.status, [entry["partition"] for entry in ended.json["offsets"]]) == (0, [0])
    says = f"group '{group}' has no committed offset for {topic}-1: it cannot be shifted and is left out"
    assert ended.err == f"chaffinch: warning: {says}\n"
    unknown = ("groups", "reset-offsets", "--group", f"{group}s", "--all-topics", "--to-earliest")
    shell.refused(*unknown, says=f"group '{group}s' has no committed offsets: name topics with --topic")


def no_group_is_deleted_if_one_is_unknown(shell: Shell) -> None:
    _, group = with_offsets(shell, "several")
    shell.refused("groups", "delete", "--group", group, "--group", f"{group}s", says=f"'{group}s' does not exist; the nearest is '{group}'")
    assert offsets_of(shell, group) == {0: (2, 3, 1), 1: (2, 3, 1)}
    other, busy = with_offsets(shell, "several-busy")
    with member(shell, other, busy, "classic"):
        shell.refused("groups", "delete", "--group", group, "--group", busy, says=f"Deleted before it: '{group}'")
    shell.refused("groups", "describe", "--group", group, says="does not exist")


def offsets_of_a_topic_are_deleted(shell: Shell) -> None:
    topic, group = with_offsets(shell, "forget")
    deleted = shell.ok("groups", "delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert deleted.out == f"deleted the offset of {topic}-0\n"
    assert offsets_of(shell, group) == {1: (2, 3, 1)}
    again = shell("groups", "delete-offsets", "--group", group, "--topic", topic, "--json")
    assert again.json == {"group": group, "deleted": [{"topic": topic, "partition": 1}]}
    assert (again.status, again.err) == (0, f"chaffinch: warning: group '{group}' has no committed offset for {topic}-0\n")
    shell.refused("groups", "delete-offsets", "--group", f"{group}s", "--topic", topic, says="does not exist")


def _with_members(shell: Shell, protocol: str) -> None:
    topic, group = with_offsets(shell, f"members-{protocol}")
    with member(shell, topic, group, protocol):
        (described,) = shell.ok("groups", "describe", "--group", group, "--json").json
        assert (described["type"], described["state"]) == (protocol, "Stable")
        (found,) = described["members"]
        assert found["client_id"] == "reader"
        assert [(entry["topic"], entry["partition"]) for entry in found["partitions"]] == [(topic, 0), (topic, 1)]
        assert {entry["member_id"] for entry in described["offsets"]} == {found["member_id"]}
        assert described["assignor"]
        shell.refused("groups", "delete", "--group", group, says="NON_EMPTY_GROUP")
        reset = ("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
        shell.refused(*reset, says="NON_EMPTY_GROUP")
        shell.refused("groups", "delete-offsets", "--group", group, "--topic", topic, says="GROUP_SUBSCRIBED_TO_TOPIC")
    shell.ok("groups", "reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert offsets_of(shell, group) == {0: (0, 3, 3), 1: (0, 3, 3)}


def members_of_the_classic_protocol(shell: Shell) -> None:
    _with_members(shell, "classic")


def members_of_the_consumer_protocol(shell: Shell) -> None:
    _with_members(shell, "consumer")


CHECKS = [
    simple_groups_are_listed_described_and_deleted,
    unknown_group_is_refused_with_nearest_name,
    offsets_are_reset_only_with_execute,
    incomplete_or_contradicting_reset_is_refused,
    partitions_are_selected_singly_or_by_topic,
    reset_warns_of_partitions_without_offset,
    no_group_is_deleted_if_one_is_unknown,
    offsets_of_a_topic_are_deleted,
    members_of_the_classic_protocol,
    members_of_the_consumer_protocol,
]
