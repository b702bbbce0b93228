"""docs/how-to/from-*.md: the names of other clients exist there, and are refused here with the name that the page gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from chaffinch import AsyncConsumer, AsyncProducer, Consumer, Producer, foreign_names
from chaffinch.admin import Admin
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS

HOW_TO = Path(__file__).resolve().parents[1] / "docs" / "how-to"
PACKAGES = {"from-confluent-kafka": confluent_kafka, "from-kafka-python": kafka, "from-aiokafka": aiokafka}
KNOWN = {option.name for table in (PRODUCER_OPTIONS, CONSUMER_OPTIONS) for option in table.options}
CALLS = {name for kind in (Producer, Consumer, AsyncProducer, AsyncConsumer, Admin) for name in dir(kind)}
HINTS = {
    **foreign_names.MODULE_HINTS,
    **foreign_names.PRODUCER_HINTS,
    **foreign_names.CONSUMER_HINTS,
}


def rows(page: str, kind: str) -> Iterator[tuple[list[str], list[str]]]:
    """Code spans of both cells of each row below a heading that begins with `kind`."""
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *lines = table.splitlines()
        if heading.removeprefix("| ").startswith(kind):
            for line in lines:
                left, right = line.strip("| ").split(" | ", 1)
                yield re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)


def exists(package: Any, dotted: str) -> bool:
    found = package
    for name in dotted.split("(")[0].split("."):
        found = getattr(found, name, None) or getattr(getattr(package, "errors", None), name, None)
    return found is not None


def options_of(page: str) -> Callable[[str], bool]:
    """Whether the other client has an option of this name."""
    if page == "from-kafka-python":
        names = {*kafka.KafkaProducer.DEFAULT_CONFIG, *kafka.KafkaConsumer.DEFAULT_CONFIG}
    else:
        kinds: tuple[Any, ...] = (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer)
        names = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
    return names.__contains__


def librdkafka_has(name: str) -> bool:
    value: Any = (lambda *_: None) if name.endswith("_cb") else "1"
    try:
        confluent_kafka.Consumer({"group.id": "g", name: value}).close()
    except confluent_kafka.KafkaException as error:
        return "No such configuration property" not in str(error)
    return True


@pytest.mark.parametrize("page", PACKAGES)
def test_calls_exist_on_both_sides(page: str) -> None:
    found = list(rows(page, page.removeprefix("from-")))
    assert found
    package = PACKAGES[page]
    for left, right in found:
        for name in (name for name in left if "." in name or name[0].isupper()):
            own = name.split("(")[0].rpartition(".")[2]
            assert exists(package, name), name
            if not name.startswith("Message"):
                assert own in HINTS or own in CALLS, f"{name}: no hint and no call of this name"
        for name in right:
            call = re.match(r"(?:await )?([a-z_]+)\(", name)
            if call:
                assert call[1] in CALLS, name


@pytest.mark.parametrize("page", PACKAGES)
def test_options_exist_on_both_sides(page: str) -> None:
    found = list(rows(page, "option of"))
    assert found
    has = librdkafka_has if page == "from-confluent-kafka" else options_of(page)
    for left, right in found:
        for name in left:
            assert has(name), name
        for name in right:
            option = name.partition("=")[0].replace("_", ".")
            if re.fullmatch(r"[a-z]+(\.[a-z]+)+", option):
                assert option in KNOWN, name


@pytest.mark.parametrize("page", PACKAGES)
def test_replaced_options_are_refused(page: str) -> None:
    for left, _ in rows(page, "option of"):
        for name in left:
            if name.replace("_", ".") in KNOWN:
                continue
            with pytest.raises(ConfigException, match=re.escape(name)):
                Producer({"bootstrap.servers": "localhost:1", name: "1"})
