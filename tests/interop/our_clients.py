"""Our producer and consumer against Apache Kafka: the tests of `make unit` that need a broker, with another broker below them.

    python -m tests.interop.our_clients                                  # starts Apache Kafka; some 3 minutes
    python -m tests.interop.our_clients --bootstrap-servers HOST:PORT    # takes one that runs with `external_broker.SETTINGS`; no faults
    python -m tests.interop.our_clients --version 2.8.2                  # starts another one (`other_kafka.py`)
    python -m tests.interop.our_clients -k culprit -x                    # any pytest arguments; results go to the terminal only

Each test that asks for an `EmbeddedBroker` gets a `ExternalBroker` and must come to the same end. Those that shall not are in
`expected_differences.py`, and must fail, so that the list says what is true; so are the few that are about our broker alone, which are
left out. What was seen is printed into the pages named there. Ends with 1 where anything else fails, and with 0 where Apache Kafka
cannot be had.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import pytest

import chaffinch
from chaffinch.broker import embedded
from tests.interop.apache_kafka import kafka_version
from tests.interop.expected_differences import PAGES, difference, reason_not_run
from tests.interop.external_broker import NOT_OFFERED, SETTINGS, ExternalBroker
from tests.interop.fault_proxy import FaultProxy
from tests.interop.installing import ROOT
from tests.interop.other_kafka import apache_kafka
from tests.interop.processes import DidNotStart, NotRun

_SUITES = (
    "tests/kips/test_kip_467_fates.py",
    "tests/kips/test_kip_467_outcomes.py",
    "tests/kips/test_kip_1038.py",
    "tests/kips/test_kip_1038_calls.py",
    "tests/kips/test_kip_1050_outcomes.py",
    "tests/producer",
    "tests/consumer",
    "tests/examples/test_producer_examples.py",
    "tests/examples/test_transactional_word_count.py",
    "tests/interop/with_java_tools.py",
)
# Cores have no broker; `Killed` is one of ours, as a process, and so is what stands in for an older broker; an interrupt strikes the
# client, whatever the broker.
_NO_BROKER = (
    "--ignore-glob=*/core",
    "--ignore-glob=*/test_interrupts.py",
    "--ignore-glob=*/test_older_brokers.py",
    "--deselect=tests/examples/test_transactional_word_count.py::test_kills_lose_and_duplicate_nothing",
)
FASTER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
LINE_MAX = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The tests of one run: its name, its tests, and the pages that list them."""

    name: str
    suites: tuple[str, ...]
    pages: Mapping[str, str]


OUR_CLIENTS = Table(name="our clients", suites=(*_SUITES, *_NO_BROKER), pages=PAGES)

_PART = re.compile(r"(<!-- seen by make interop -->\n).*?(<!-- end -->)", re.DOTALL)


class End(Enum):
    """How a test that used the broker came out."""

    SAME = "passed"
    EXPECTED = "failed, as it is meant"
    NOT_OFFERED = "asks for what Apache Kafka does not offer"
    WRONG = "failed"


class Seen:
    """pytest plugin: marks intended differences and tests of our broker alone, and records the result of each test that used the broker."""

    def __init__(self, version: str) -> None:
        self.ends: dict[str, End] = {}
        self._version = version
        self._name = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            found, alone = difference(_short(item.nodeid), self._version), reason_not_run(_short(item.nodeid))
            if alone is not None:
                item.add_marker(pytest.mark.skip(reason=f"{NOT_OFFERED}: {alone}"))
            elif found is not None:
                item.add_marker(pytest.mark.xfail(reason=found.why, strict=found.is_certain))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._name = _short(item.nodeid)
        ExternalBroker.when_used = self._used

    def _used(self) -> None:
        self.ends.setdefault(self._name, End.SAME)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _short(report.nodeid)
        if report.failed:
            self.ends[name] = End.WRONG
        elif report.skipped and hasattr(report, "wasxfail"):
            self.ends[name] = End.EXPECTED
        elif report.skipped and NOT_OFFERED in str(report.longrepr):
            self.ends[name] = End.NOT_OFFERED


def _short(node: str) -> str:
    """`test_producer.py::TestSend::test_acks_0_has_no_offset`."""
    file, _, name = node.partition("::")
    return f"{file.rpartition('/')[2]}::{name}"


def page_part(ends: dict[str, End], pattern: str) -> str:
    """What a page says: how many tests came to which end, and each difference with its reason."""
    found = {name: end for name, end in ends.items() if re.fullmatch(pattern, name)}
    same, meant, more = (sum(each is end for each in found.values()) for end in (End.SAME, End.EXPECTED, End.NOT_OFFERED))
    text = (
        f"Apache Kafka {kafka_version()}: {_tests(same)} the same end as on `chaffinch broker`, {meant or 'none'} to another, as is meant"
    )
    text += f"; {more} more need what it does not offer, such as counters or several nodes." if more else "."
    lines = textwrap.wrap(text, LINE_MAX, break_on_hyphens=False)
    reasons = {each.why for name, end in found.items() if end is End.EXPECTED and (each := difference(name, kafka_version())) is not None}
    for reason in sorted(reasons):
        lines += ["", *textwrap.wrap(f"- {reason}", LINE_MAX, subsequent_indent="  ", break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def _tests(count: int) -> str:
    return "1 test comes to" if count == 1 else f"{count} tests come to"


def renew_pages(ends: dict[str, End], pages: Mapping[str, str]) -> Iterator[str]:
    """The names of the pages that say something else now."""
    for name, pattern in pages.items():
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        part = page_part(ends, pattern)
        after, count = _PART.subn(lambda found, part=part: found[1] + part + found[2], before)  # type: ignore[misc]
        assert count == 1, f"{name} has no part <!-- seen by make interop -->"
        if after != before:
            page.write_text(after, encoding="utf-8")
            yield name


def run_tests(bootstrap_servers: str, arguments: list[str], version: str, table: Table = OUR_CLIENTS) -> int:
    """Returns pytest's exit status. The pages describe the pinned version."""
    ExternalBroker.address = bootstrap_servers
    chaffinch.EmbeddedBroker = embedded.EmbeddedBroker = ExternalBroker  # type: ignore[assignment,misc]
    seen = Seen(version)
    suites = [] if any(argument.startswith("tests/") for argument in arguments) else table.suites
    status = int(pytest.main(["-p", "no:cacheprovider", "--rootdir", str(ROOT), *suites, *arguments], plugins=[seen]))
    for end in End:
        print(f"{table.name} on Apache Kafka {version}: {sum(each is end for each in seen.ends.values())} {end.value}")
    if status == 0 and not arguments and version == kafka_version():
        for name in renew_pages(seen.ends, table.pages):
            print(f"{name} renewed")
    return status


def main(arguments: list[str], table: Table = OUR_CLIENTS) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=f"the tests of {table.name} against Apache Kafka")
    parser.add_argument("--bootstrap-servers", help="of an Apache Kafka that runs with `external_broker.SETTINGS`")
    parser.add_argument("--version", default=kafka_version(), help="of the Apache Kafka that is started")
    given, rest = parser.parse_known_args(arguments)
    if given.bootstrap_servers:
        return run_tests(given.bootstrap_servers, rest, given.version, table)
    settings = FASTER | {name: str(value).lower() for name, value in SETTINGS.items()}
    try:
        with FaultProxy() as proxy:
            settings["advertised.listeners"] = f"PLAINTEXT://{proxy.address}"
            with apache_kafka(given.version, settings) as kafka:
                proxy.aim(kafka.bootstrap_servers)
                ExternalBroker.proxy, ExternalBroker.kafka = proxy, kafka
                return run_tests(proxy.address, rest, given.version, table)
    except (NotRun, DidNotStart) as reason:
        print(f"{table.name} on Apache Kafka {given.version}: not run: {reason}")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
