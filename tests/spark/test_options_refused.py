"""Every option of the sink and of the source with a value that it cannot have: refused before any broker is asked, in words.

Of numbers, switches, choices and limited texts the wrong values follow from the tables of options; what else is a text is listed here.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pytest

from chaffinch.errors import ConfigException
from chaffinch.settings import Option, OptionTable
from chaffinch.spark.sink.option_tables import EXACTLY_ONCE, TABLES
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.source.options import SOURCE, STREAM_SOURCE, SourceOptions
from chaffinch.spark.target import client_for, forget_client
from chaffinch.spark.tasks.row_handler import handler_for

LEAST = {"kafka.bootstrap.servers": "a:1"}
PLAIN = "cannot be used with kafka.security.protocol=PLAINTEXT"
NO_FILE = "/no/such/file"
TLS = {"kafka.security.protocol": "SSL"}
LOGIN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
LETTERS = {"errors.tolerance": "all"}
EMPTY = ": give it a value, or leave it out"

Parse: TypeAlias = Callable[[Mapping[str, Any]], SinkOptions | SourceOptions]
Texts: TypeAlias = dict[str, tuple[Mapping[str, str | None], str, str]]
# Name -> what else is given, a wrong value, and what is said behind the name.
CLIENT_TEXTS: Texts = {
    "kafka.bootstrap.servers": ({}, "a", "cannot contain 'a': each server must be host:port, with a port from 1 to 65535"),
    "kafka.ssl.ca.location": (TLS, NO_FILE, f"{NO_FILE}: No such file"),
    "kafka.ssl.truststore.location": (TLS, NO_FILE, f"{NO_FILE}: No such file"),
    "kafka.ssl.truststore.type": (TLS, "JKS", "cannot be 'JKS': only PEM is read"),
    "kafka.ssl.truststore.certificates": (TLS, "no PEM", "it contains no readable certificate in PEM"),
    "kafka.ssl.keystore.location": (TLS, NO_FILE, f"{NO_FILE}: No such file"),
    "kafka.ssl.keystore.type": (TLS, "JKS", "cannot be 'JKS': only PEM is read"),
    "kafka.ssl.keystore.key": (TLS, "key", "belong together: give both or none"),
    "kafka.ssl.keystore.certificate.chain": (TLS, "chain", "belong together: give both or none"),
    "kafka.ssl.key.password": ({}, "secret", PLAIN),
    "kafka.ssl.cipher.suites": (TLS, "nonsense", "OpenSSL knows none of nonsense"),
    "kafka.sasl.username": ({}, "user", PLAIN),
    "kafka.sasl.password": ({}, "secret", PLAIN),
    "kafka.sasl.jaas.config": (LOGIN, "nonsense", "cannot be parsed: it must be MODULE required"),
}
SINK_TEXTS: Texts = {
    **{
        name: ({}, " ", f"is empty{EMPTY}")
        for name in ("topic", "stagingLocation", "markerTopic", "idempotencyToken", "errors.column", "kafka.transactional.id")
    },
    **{name: (LETTERS, "", f"is empty{EMPTY}") for name in ("errors.dead.letter.queue.topic.name", "errors.dead.letter.path")},
    "errors.tolerance.max": (
        {**LETTERS, "errors.dead.letter.path": "/d"},
        "1_0",
        "='1_0' is neither a count (100) nor a share between 0% and",
    ),
    "kafka.custom.exception.handler.class": ({}, "no.such", "cannot be 'no.such': it cannot be imported (No module named 'no')"),
}
SOURCE_TEXTS: Texts = {
    "subscribe": ({"subscribe": None}, " , ", "subscribePattern and assign: subscribe is empty"),
    "subscribePattern": ({"subscribe": None}, "(", "cannot be '(': it is not a regular expression"),
    "assign": ({"subscribe": None}, '{"t":[]}', "t must have a list of partition numbers; allowed: JSON such as"),
    "startingOffsets": ({}, "now", "cannot be 'now'; allowed: "),
    "endingOffsets": ({}, '{"t":{"0":-2}}', "has -2 for t-0; it must be an offset, or -1 for latest"),
    "startingOffsetsByTimestamp": ({}, f'{{"t":{{"0":{2**63}}}}}', f"has {2**63} for t-0; it must be at most {2**63 - 1}"),
    "endingOffsetsByTimestamp": ({}, '{"t":{"0":-1}}', "has -1 for t-0; it must be milliseconds since 1970"),
    "maxTriggerDelay": ({}, "soon", "cannot be 'soon': it must be a number and one of ms, s, m"),
}


def sink(guarantee: str) -> Callable[[Mapping[str, Any]], SinkOptions]:
    def parse(given: Mapping[str, Any]) -> SinkOptions:
        fixed = {"deliveryGuarantee": guarantee, "topic": "t"}
        return SinkOptions.parse({**LEAST, **fixed, **given}, is_stream="idempotencyToken" not in given)

    return parse


def source(is_stream: bool) -> Callable[[Mapping[str, Any]], SourceOptions]:
    return lambda given: SourceOptions.parse({**LEAST, "subscribe": "t", **given}, is_stream=is_stream)


PARTS: dict[str, tuple[OptionTable, Parse, Texts]] = {
    **{guarantee: (table, sink(guarantee), CLIENT_TEXTS | SINK_TEXTS) for guarantee, table in TABLES.items()},
    "batch source": (SOURCE, source(False), CLIENT_TEXTS | SOURCE_TEXTS),
    "stream source": (STREAM_SOURCE, source(True), CLIENT_TEXTS | SOURCE_TEXTS),
}


def wrong_values(option: Option) -> Iterator[tuple[str, str]]:
    """What an option cannot be by what its table says, with the words for it."""
    if option.choices:
        yield "nonsense", option.allowed
    elif option.kind == "bool":
        yield "yes", "true or false"
    elif option.kind == "int":
        yield "1.5", "a whole number"
        if option.minimum is not None:
            yield str(int(option.minimum) - 1), option.allowed
        if option.maximum is not None:
            yield str(int(option.maximum) + 1), option.allowed
    if option.bytes_max is not None:
        yield "x" * (option.bytes_max + 1), f"{option.bytes_max + 1} bytes of it: it must be at most {option.bytes_max} bytes"


def refused(parse: Parse, given: Mapping[str, str | None]) -> str:
    """What is said of options that cannot be: by the tables, by what belongs together, and by what is read in the planner."""
    with pytest.raises(ConfigException) as caught:
        begin(parse(given))
    return str(caught.value)


def begin(options: SinkOptions | SourceOptions) -> None:
    handler_for(getattr(options, "handler", None))
    client_for(options.client)
    forget_client(options.client)


@pytest.mark.parametrize("part", PARTS)
def test_wrong_values_are_refused_by_tables(part: str) -> None:
    table, parse, _ = PARTS[part]
    for option in table.options:
        for value, allowed in wrong_values(option):
            text = refused(parse, {option.name: value})
            shown = f"{value[:40]!r}..." if len(value) > 1000 else repr(value)
            assert text.startswith(f"option {option.name} cannot be {shown}")
            assert text.removesuffix(f"; {option.advice}").endswith(allowed.strip())


@pytest.mark.parametrize("part", PARTS)
def test_refusal_texts(part: str) -> None:
    table, parse, texts = PARTS[part]
    free = [option.name for option in table.options if not list(wrong_values(option)) or option.name in texts]
    for name in free:
        beside, value, says = texts[name]
        text = refused(parse, {**beside, name: value})
        assert name in text
        assert says in text


# What every part takes although it has no use for it, with a value that it cannot have.
OF_CLIENTS = {
    "kafka.auto.include.jmx.reporter": "maybe",
    "kafka.client.dns.lookup": "guess",
    "kafka.enable.metrics.push": "1",
    "kafka.metrics.num.samples": "0",
    "kafka.metrics.recording.level": "LOUD",
    "kafka.metrics.sample.window.ms": "x",
    "kafka.metadata.max.age.ms": "-1",
    "kafka.metadata.recovery.strategy": "luck",
}
OF_SINKS = OF_CLIENTS | {"includeHeaders": "maybe"}
OF_SOURCES = OF_CLIENTS | {
    "fetchOffset.numRetries": "-1",
    "fetchOffset.retryIntervalMs": "x",
    "kafkaConsumer.pollTimeoutMs": "x",
    "kafka.fetch.min.bytes": "-1",
    "kafka.fetch.max.wait.ms": "x",
    "kafka.max.poll.records": "0",
    "kafka.check.crcs": "yes",
}
WITHOUT_EFFECT = {
    **dict.fromkeys(TABLES, OF_SINKS),
    EXACTLY_ONCE: OF_SINKS
    | {
        "kafka.linger.ms": "x",
        "kafka.buffer.memory": "-1",
        "kafka.retries": "-5",
        "kafka.delivery.timeout.ms": "soon",
        "kafka.max.in.flight.requests.per.connection": "0",
    },
    "batch source": OF_SOURCES | {"maxOffsetsPerTrigger": "0", "minOffsetsPerTrigger": "x", "maxTriggerDelay": "soon"},
    "stream source": OF_SOURCES,
}


@pytest.mark.parametrize("part", PARTS)
def test_options_without_effect_are_validated(part: str) -> None:
    _, parse, _ = PARTS[part]
    for name, value in WITHOUT_EFFECT[part].items():
        assert refused(parse, {name: value}).startswith(f"option {name} cannot be {value!r}: it must be ")


@pytest.mark.parametrize(
    ("part", "name", "value", "says"),
    [
        ("batch source", "assign", "[" * 100_000, "allowed: JSON"),
        ("batch source", "startingOffsets", "[" * 100_000, "allowed: earliest"),
        ("batch source", "subscribePattern", "a{99999999999}", "not a regular expression: the repetition number is too large"),
        ("stream source", "maxTriggerDelay", "9" * 5_000, "it must be a number and one of ms, s"),
        (EXACTLY_ONCE, "errors.tolerance.max", "9" * 5_000, "is neither a count (100) nor a share"),
    ],
)
def test_values_that_python_rejects_are_refused(part: str, name: str, value: str, says: str) -> None:
    _, parse, _ = PARTS[part]
    beside = {**LETTERS, "errors.dead.letter.path": "/d"} if part == EXACTLY_ONCE else {"subscribe": None}
    text = refused(parse, {**({} if "Offsets" in name or "Delay" in name else beside), name: value})
    assert name in text
    assert says in text


@pytest.mark.parametrize(("part", "name"), list(itertools.product(PARTS, ["kafka.bach.size", "Topics", "failOnDataLos"])))
def test_unknown_name_error_has_nearest_name(part: str, name: str) -> None:
    _, parse, _ = PARTS[part]
    assert refused(parse, {name: "x"}).startswith(f"unknown option {name!r}: ")


def test_minimum_value_is_accepted() -> None:
    """Else the tests above would see refusals of something else."""
    for _, parse, _ in PARTS.values():
        begin(parse({}))
    assert EXACTLY_ONCE in PARTS


def names_of(*tables: OptionTable) -> set[str]:
    return {option.name for table in tables for option in table.options}


OF_ONE_SIDE = [
    *(("sink", name) for name in sorted(names_of(*TABLES.values()) - names_of(SOURCE, STREAM_SOURCE) - {"topic"})),
    *(("source", name) for name in sorted(names_of(SOURCE, STREAM_SOURCE) - names_of(*TABLES.values()))),
]


@pytest.mark.parametrize("guarantee", TABLES)
@pytest.mark.parametrize(("side", "name"), OF_ONE_SIDE)
def test_option_of_other_side_is_named_in_proper_case(side: str, name: str, guarantee: str) -> None:
    """Spark hands over names in small letters."""
    given = {"kafka.bootstrap.servers": "a:1", name.lower(): "1"}
    parses: list[Callable[[], object]] = [
        lambda: SinkOptions.parse({**given, "topic": "t", "deliveryguarantee": guarantee}, is_stream=True),
        lambda: SourceOptions.parse({**given, "subscribe": "t"}),
        lambda: SourceOptions.parse({**given, "subscribe": "t"}, is_stream=True),
    ]
    table = SOURCE if side == "sink" else TABLES[guarantee]
    if name in {each if isinstance(each, str) else each.name for each in table.without_effect}:
        return  # Taken, and said to be without effect.
    for parse in parses[1:] if side == "sink" else parses[:1]:
        with pytest.raises(ConfigException, match=f"unknown option '{re.escape(name)}': .*an option of the {side}"):
            parse()


@pytest.mark.parametrize(
    ("guarantee", "acks", "says"),
    [
        (None, "0", "for acks=0 set deliveryGuarantee=none, which writes without transactions"),
        ("at-least-once", "0", "for acks=0 set deliveryGuarantee=none"),
        ("none", "all", "for acknowledged rows set deliveryGuarantee to exactly-once or at-least-once"),
    ],
)
def test_wrong_acks_error_names_delivery_guarantee(guarantee: str | None, acks: str, says: str) -> None:
    chosen = {} if guarantee is None else {"deliveryGuarantee": guarantee}
    with pytest.raises(ConfigException, match=f"option kafka.acks cannot be '{acks}': it must be .*; {says}"):
        SinkOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.acks": acks, **chosen}, is_stream=True)
