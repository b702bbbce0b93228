"""docs/reference/interop.md as it is printed from cells."""

from __future__ import annotations

from tests.interop.cells import Cell, Row, Verdict
from tests.interop.clients import CLIENTS, Client
from tests.interop.interop_page import page
from tests.interop.scenarios import SCENARIOS, Scenario

SCENARIO_NAMES = {scenario.name for scenario in SCENARIOS}
FACTS = {f"{scenario.name}.{fact}" for scenario in SCENARIOS for fact in scenario.expected}
ONE = Scenario(name="one", title="the first", expected={})
WORKS = Cell(verdict=Verdict.WORKS)


def client(name: str) -> Client:
    return Client(name=name, prepare=list, culprits=())


def rows(**cells: Cell) -> list[Row]:
    return [Row(client=client(name), version="1", cells={"one": cell}) for name, cell in cells.items()]


def printed(chaffinch: list[Row], apache_kafka: list[Row]) -> list[str]:
    """The last table and the notes."""
    text = page("4.3.1", apache_kafka, chaffinch, [ONE])
    return text[text.index("|  |") :].splitlines()


def test_cell_shows_its_result_and_equal_notes_share_a_number() -> None:
    source = Cell(verdict=Verdict.NOT_OFFERED, note="see there")
    found = rows(a=WORKS, b=source, c=source)
    assert printed(found, found) == [
        "|  | a | b | c |",
        "| --- | --- | --- | --- |",
        "| version | 1 | 1 | 1 |",
        "| the first | works | not offered [1] | not offered [1] |",
        "",
        "1. see there",
    ]


def test_difference_from_apache_kafka_becomes_a_note() -> None:
    broken = Cell(verdict=Verdict.FAILS, note="offset is 3, expected 5")
    assert printed(rows(a=broken), rows(a=WORKS))[-3:] == [
        "| the first | fails [1] |",
        "",
        "1. offset is 3, expected 5; on Apache Kafka: works",
    ]
    assert printed(rows(a=WORKS), rows(a=broken))[-1] == "1. on Apache Kafka: fails (offset is 3, expected 5)"


def test_long_note_is_wrapped_with_indent() -> None:
    long = Cell(verdict=Verdict.WORKS, note="word " * 40)
    first, second = printed(rows(a=long), rows(a=long))[-2:]
    assert first.startswith("1. word word")
    assert second.startswith("   word")


def test_unsupported_features_name_existing_scenarios_and_a_source() -> None:
    for each in CLIENTS:
        assert each.not_offered.keys() <= SCENARIO_NAMES | FACTS, each.name
        assert all("https://" in why for why in each.not_offered.values()), each.name
