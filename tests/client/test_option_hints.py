"""What is said of options that belong to the other client or to another library."""

from __future__ import annotations

import pytest

from chaffinch.client import option_hints
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.settings import OptionTable

SERVERS = {"bootstrap.servers": "b:1"}


def names_of(table: OptionTable) -> set[str]:
    return {option.name for option in table.options} | table.without_effect


def test_option_names_match_the_tables() -> None:
    producers, consumers = names_of(PRODUCER_OPTIONS), names_of(CONSUMER_OPTIONS)
    assert producers - consumers == option_hints.PRODUCER_OPTION_NAMES
    assert consumers - producers == option_hints.CONSUMER_OPTION_NAMES


@pytest.mark.parametrize(
    ("table", "hints"), [(PRODUCER_OPTIONS, option_hints.PRODUCER_HINTS), (CONSUMER_OPTIONS, option_hints.CONSUMER_HINTS)]
)
def test_hints_are_for_unknown_names_and_name_known_options(table: OptionTable, hints: dict[str, str]) -> None:
    assert not names_of(table) & hints.keys()
    for hint in hints.values():
        if hint.startswith("it is ") and not hint.startswith("it is an option of"):
            assert any(name in hint for name in names_of(table)), hint


@pytest.mark.parametrize(
    ("table", "name", "says"),
    [
        (PRODUCER_OPTIONS, "group.id", "unknown option 'group.id': it is an option of consumers, remove it from the producer"),
        (PRODUCER_OPTIONS, "group_id", "unknown option 'group_id': it is an option of consumers"),
        (CONSUMER_OPTIONS, "linger.ms", "it is an option of producers, remove it from the consumer"),
        (CONSUMER_OPTIONS, "metadata.broker.list", "unknown option 'metadata.broker.list': use bootstrap.servers"),
        (PRODUCER_OPTIONS, "queue.buffering.max.ms", "use linger.ms"),
        (PRODUCER_OPTIONS, "delivery_report_cb", "unknown option 'delivery_report_cb': give on_delivery to send()"),
        (CONSUMER_OPTIONS, "enable.auto.offset.store", "set enable.auto.commit=false"),
        (CONSUMER_OPTIONS, "consumer_timeout_ms", "give poll() a timeout"),
    ],
)
def test_hint_is_in_the_error(table: OptionTable, name: str, says: str) -> None:
    with pytest.raises(ConfigException) as caught:
        table.parse({**SERVERS, name: "x"})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (PRODUCER_OPTIONS, "client.id"),
        (PRODUCER_OPTIONS, "transactional.id"),
        (CONSUMER_OPTIONS, "group.id"),
        (CONSUMER_OPTIONS, "group.instance.id"),
        (CONSUMER_OPTIONS, "client.rack"),
    ],
)
def test_id_longer_than_a_request_allows_is_rejected(table: OptionTable, name: str) -> None:
    assert table.parse({**SERVERS, name: "n" * 32_767})[name]
    with pytest.raises(ConfigException) as caught:
        table.parse({**SERVERS, name: "é" * 20_000})
    assert f"option {name} cannot be" in str(caught.value)
    assert "40000 bytes of it: it must be at most 32767 bytes" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("table", [PRODUCER_OPTIONS, CONSUMER_OPTIONS])
def test_security_protocol_in_lower_case(table: OptionTable) -> None:
    """As in configurations of librdkafka."""
    assert table.parse({**SERVERS, "security.protocol": "sasl_ssl"})["security.protocol"] == "SASL_SSL"
