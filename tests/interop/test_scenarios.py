"""The Python clients of `make interop` in the scenarios that no other file of this folder has, against an EmbeddedBroker."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker
from tests.interop.brokers import CHAFFINCH
from tests.interop.cells import Verdict, run_cell
from tests.interop.clients import CLIENTS, PYTHON_CLIENTS
from tests.interop.scenarios import SCENARIOS

CLIENT_BY_NAME = {client.name: client for client in CLIENTS}
SCENARIO_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
PROGRAMS = {"confluent-kafka": "run_confluent_kafka.py", "kafka-python": "run_kafka_python.py", "aiokafka": "run_aiokafka.py"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.mark.parametrize("scenario", ["headers", "group", "group-consumer", "offsets", "topics", "groups"])
@pytest.mark.parametrize("client", PROGRAMS)
def test_a_client_works(broker: EmbeddedBroker, client: str, scenario: str) -> None:
    command = [sys.executable, str(PYTHON_CLIENTS / PROGRAMS[client])]
    cell = run_cell(command, CHAFFINCH, broker.bootstrap_servers, CLIENT_BY_NAME[client], SCENARIO_BY_NAME[scenario])
    is_offered = scenario not in CLIENT_BY_NAME[client].not_offered
    assert cell.verdict is (Verdict.WORKS if is_offered else Verdict.NOT_OFFERED), cell.note
