"""The Python clients of `make interop` in the scenarios that no other file of this folder has, against an EmbeddedBroker."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaffinch import EmbeddedBroker
from tests.interop.brokers import CHAFFINCH
from tests.interop.cells import Cell, Verdict, run_cell
from tests.interop.clients import CLIENTS, PYTHON_CLIENTS
from tests.interop.scenarios import SCENARIOS

CLIENT_BY_NAME = {client.name: client for client in CLIENTS}
SCENARIO_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
PROGRAMS = {"confluent-kafka": "run_confluent_kafka.py", "kafka-python": "run_kafka_python.py", "aiokafka": "run_aiokafka.py"}
OFFERED = [
    (client, scenario)
    for client, scenario in itertools.product(PROGRAMS, ("group", "group-consumer", "offsets", "transactionstates", "topics", "groups"))
    if scenario not in CLIENT_BY_NAME[client].not_offered
]
AT_ONCE = 5
"""Programs that run side by side: they mostly wait for their clients' timers."""


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str], Cell]:
    with EmbeddedBroker() as broker, ThreadPoolExecutor(AT_ONCE) as pool:

        def run(client: str, scenario: str) -> Cell:
            command = [sys.executable, str(PYTHON_CLIENTS / PROGRAMS[client])]
            return run_cell(command, CHAFFINCH, broker.bootstrap_servers, CLIENT_BY_NAME[client], SCENARIO_BY_NAME[scenario])

        return dict(zip(OFFERED, pool.map(run, *zip(*OFFERED, strict=True)), strict=True))


@pytest.mark.parametrize(("client", "scenario"), OFFERED)
def test_client_passes_scenario(cells: dict[tuple[str, str], Cell], client: str, scenario: str) -> None:
    cell = cells[client, scenario]
    assert cell.verdict is Verdict.WORKS, cell.note
