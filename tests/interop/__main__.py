"""`make interop`: every client in every scenario, against Apache Kafka and against `chaffinch broker`; prints docs/reference/interop.md.

    python -m tests.interop                                        # all of it: some 10 minutes
    python -m tests.interop --client kcat --scenario group         # a part; results go to the terminal only
    python -m tests.interop --only chaffinch                       # without Apache Kafka
    python -m tests.interop --client Java --java 4.4.0             # the Java client of another version

Ends with 1 when a cell that works on Apache Kafka does not work here, or when one fails on both for an unlisted reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tests.interop import interop_page
from tests.interop.apache_kafka import ApacheKafka, kafka_version
from tests.interop.brokers import APACHE_KAFKA, BROKERS, CHAFFINCH, ChaffinchBroker
from tests.interop.cells import Row, Verdict, row_not_run, run_row
from tests.interop.clients import CLIENTS, JAVA, Client, java_program
from tests.interop.installing import ROOT
from tests.interop.processes import DidNotStart, NotRun
from tests.interop.scenarios import SCENARIOS, Scenario

PAGE = ROOT / "docs" / "reference" / "interop.md"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("--client", action="append", choices=[client.name for client in CLIENTS])
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--only", choices=BROKERS)
    parser.add_argument("--bootstrap-servers", help="a broker that runs already, with --only")
    parser.add_argument("--java", metavar="VERSION", help="of the Java client; else the pinned one")
    given = parser.parse_args(arguments)
    clients = [client for client in CLIENTS if given.client is None or client.name in given.client]
    scenarios = [scenario for scenario in SCENARIOS if given.scenario is None or scenario.name in given.scenario]
    if given.java:
        clients = [replace(each, prepare=partial(java_program, given.java)) if each.name == JAVA else each for each in clients]
    ready = {client.name: _prepared(client) for client in clients}
    brokers = BROKERS if given.only is None else (given.only,)
    # Both brokers at once: most of the time of a cell, a client waits for its own timers.
    with ThreadPoolExecutor(len(brokers)) as pool:
        run = partial(_rows, given.bootstrap_servers, clients, ready, scenarios)
        rows = dict(zip(brokers, pool.map(run, brokers), strict=True))
    if (given.client, given.scenario, given.only, given.java) == (None, None, None, None):
        PAGE.write_text(interop_page.page(kafka_version(), rows[APACHE_KAFKA], rows[CHAFFINCH], scenarios))
        print(f"{PAGE.relative_to(ROOT)} printed")
    return _report(rows)


def _prepared(client: Client) -> list[str] | NotRun:
    try:
        return client.prepare()
    except NotRun as reason:
        print(f"{client.name}: not run: {reason}", flush=True)
        return reason


def _rows(
    bootstrap_servers: str | None,
    clients: Sequence[Client],
    ready: Mapping[str, list[str] | NotRun],
    scenarios: Sequence[Scenario],
    broker: str,
) -> list[Row]:
    rows = []
    try:
        with _served(broker, bootstrap_servers) as address:
            for client in clients:
                command = ready[client.name]
                if isinstance(command, NotRun):
                    rows.append(row_not_run(client, scenarios, str(command)))
                else:
                    rows.append(run_row(broker, address, client, command, scenarios))
    except (NotRun, DidNotStart) as reason:
        print(f"{broker}: not run: {reason}", flush=True)
        return [row_not_run(client, scenarios, f"{broker} could not be started") for client in clients]
    return rows


@contextmanager
def _served(broker: str, bootstrap_servers: str | None) -> Iterator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with ApacheKafka() if broker == APACHE_KAFKA else ChaffinchBroker() as running:
        yield running.bootstrap_servers


def _report(rows: dict[str, list[Row]]) -> int:
    failed = [
        f"{row.client.name}, {scenario}, on {broker}: {cell.note}"
        for broker, found in rows.items()
        for row in found
        for scenario, cell in row.cells.items()
        if cell.verdict is Verdict.FAILS
    ]
    for line in failed:
        print(f"fails: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
