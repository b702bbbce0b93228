"""One cell of the table: create the topic, run the client's program, compare its facts and the stored records."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.brokers import CHAFFINCH
from tests.interop.clients import OLDER_NOTE, Client
from tests.interop.installing import ROOT
from tests.interop.processes import Outcome, run
from tests.interop.scenarios import CULPRITS, Scenario, read_stored

CELL_SECONDS = 90.0
CREATE_SECONDS = 30.0
NOTE_LENGTH_MAX = 300

_numbers = itertools.count(1)


class Verdict(Enum):
    """What a cell says."""

    WORKS = "works"
    NOT_OFFERED = "not offered"
    NOT_RUN = "not run"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`note`: the failure, the source, or what works only in part; one line."""

    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A client on one broker; `cells` by the scenario's name."""

    client: Client
    version: str
    cells: Mapping[str, Cell]


def run_row(broker: str, bootstrap_servers: str, client: Client, command: Sequence[str], scenarios: Sequence[Scenario]) -> Row:
    """Every scenario of one client, whose program is `command`, each printed on the terminal."""
    cells = {}
    for scenario in scenarios:
        begin = time.monotonic()
        cell = cells[scenario.name] = run_cell(command, broker, bootstrap_servers, client, scenario)
        seconds = time.monotonic() - begin
        print(f"{broker}: {client.name}: {scenario.name} ({seconds:.1f} s): {cell.verdict.value} {cell.note}".rstrip(), flush=True)
    version = _facts(_program(command, "versions", "-", "-")).get("version", "")
    return Row(client=client, version=str(version), cells=cells)


def row_not_run(client: Client, scenarios: Sequence[Scenario], reason: str) -> Row:
    cell = Cell(verdict=Verdict.NOT_RUN, note=_one_line(reason))
    return Row(client=client, version="", cells={scenario.name: cell for scenario in scenarios})


def run_cell(command: Sequence[str], broker: str, bootstrap_servers: str, client: Client, scenario: Scenario) -> Cell:
    """One scenario of one client, whose program is `command`."""
    if scenario.name in client.not_offered:
        return Cell(verdict=Verdict.NOT_OFFERED, note=client.not_offered[scenario.name])
    left_out = _left_out(client, scenario)
    expected = {name: value for name, value in scenario.expected.items() if name not in left_out}
    notes = list(left_out.values())
    if scenario.name == CULPRITS:
        is_older = broker == CHAFFINCH and bool(client.culprits_older)
        expected["fates"] = list(client.culprits_older if is_older else client.culprits)
        notes += [OLDER_NOTE] * is_older
    complaint = _complaint(command, bootstrap_servers, client, scenario, expected)
    if complaint:
        # Apache Kafka reports a change before all its parts know it, and clients have races of their own: try once more, and say so.
        again = _complaint(command, bootstrap_servers, client, scenario, expected)
        if again:
            return Cell(verdict=Verdict.FAILS, note=again)
        notes.append(f"at the second attempt; at the first: {complaint}")
    return Cell(verdict=Verdict.WORKS, note="; ".join(notes))


def _complaint(command: Sequence[str], bootstrap_servers: str, client: Client, scenario: Scenario, expected: Mapping[str, Any]) -> str:
    """What is wrong, in one line; empty when all is well."""
    name = re.sub(r"[^a-z0-9]+", "-", client.name.lower()).strip("-")
    topic = f"{name}-{scenario.name}-{os.getpid()}-{next(_numbers)}"
    try:
        _create(bootstrap_servers, topic, scenario)
    except KafkaException as error:
        return _one_line(f"the topic could not be created: {error}")
    outcome = _program(command, scenario.name, bootstrap_servers, topic)
    facts = _facts(outcome)
    wrong = [f"{name} is {facts[name]!r}, expected {value!r}" for name, value in expected.items() if facts.get(name, value) != value]
    if not facts.keys() >= expected.keys():
        wrong.append(f"no word of {', '.join(name for name in expected if name not in facts)}")
    if not outcome.succeeded:
        wrong.append(outcome.errors.strip() or f"exit status {outcome.exit_status}")
    if wrong:
        return _one_line("; ".join(wrong))
    if scenario.group_type and (seen := _group_type(bootstrap_servers, f"{topic}-group")) != scenario.group_type:
        return f"the group's type is {seen}, expected {scenario.group_type}"
    return _one_line(scenario.stored(read_stored(bootstrap_servers, topic, scenario.partitions)))


def _left_out(client: Client, scenario: Scenario) -> dict[str, str]:
    """Facts of the scenario that the client does not offer, and why."""
    begin = f"{scenario.name}."
    return {
        name.removeprefix(begin): f"without {name.removeprefix(begin)}: {why}" for name, why in client.not_offered.items() if begin in name
    }


def _create(bootstrap_servers: str, topic: str, scenario: Scenario) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    wanted = NewTopic(topic, scenario.partitions, 1, config=dict(scenario.config))
    (created,) = admin.create_topics([wanted]).values()
    created.result(CREATE_SECONDS)


def _group_type(bootstrap_servers: str, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    listed = admin.list_consumer_groups().result(CREATE_SECONDS)
    return next((each.type.name.lower() for each in listed.valid if each.group_id == group), "unknown")


def _program(command: Sequence[str], *arguments: str) -> Outcome:
    return run([*command, *arguments], timeout_s=CELL_SECONDS, folder=ROOT)


def _facts(outcome: Outcome) -> dict[str, Any]:
    """The JSON objects of the output, together; other lines are a client's chatter."""
    facts: dict[str, Any] = {}
    for line in outcome.output.splitlines():
        if line.startswith("{"):
            facts |= json.loads(line)
    return facts


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NOTE_LENGTH_MAX else f"{line[: NOTE_LENGTH_MAX // 2]} ... {line[-NOTE_LENGTH_MAX // 2 :]}"
