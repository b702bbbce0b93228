"""Option trace.headers: the trace context of OpenTelemetry, or headers of a function, on each record of `send`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from chaffinch import AsyncProducer, Consumer, Producer
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ConfigException

SPAN = NonRecordingSpan(SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
PARENT = b"00-00000000000000000000000000000abc-0000000000000def-01"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": 1}) as running:
        yield running


def headers(broker: EmbeddedBroker) -> list[list[tuple[str, bytes | None]]]:
    return [[(pair["key"], pair["value"]) for pair in found] for found in broker.read("orders").column("headers").to_pylist()]


def test_records_carry_the_current_span(broker: EmbeddedBroker) -> None:
    """Another service finds the parent in them; outside of a span there is none."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, trace_headers="opentelemetry") as producer:
        with trace.use_span(SPAN):
            producer.send("orders", b"1", headers=[("h", b"x")]).result()
        producer.send("orders", b"2").result()
    assert headers(broker) == [[("h", b"x"), ("traceparent", PARENT)], []]
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["orders"])
        record = consumer.poll(60)[0]
    context = propagate.extract({name: (value or b"").decode() for name, value in record.headers})
    assert trace.get_current_span(context).get_span_context().trace_id == 0xABC


def test_async_producer_carries_the_current_span(broker: EmbeddedBroker) -> None:
    async def send() -> None:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, trace_headers="opentelemetry") as producer:
            with trace.use_span(SPAN):
                await producer.send("orders", b"1")

    asyncio.run(send())
    assert headers(broker) == [[("traceparent", PARENT)]]


def test_headers_of_the_record_precede_those_of_the_context(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, trace_headers=lambda: [("traceparent", b"of now"), ("b", None)]) as producer:
        producer.send("orders", b"1", headers=[("traceparent", b"forwarded")]).result()
    assert headers(broker) == [[("traceparent", b"forwarded"), ("b", None)]]


def test_trace_headers_are_off_by_default(broker: EmbeddedBroker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, trace.use_span(SPAN):
        producer.send("orders", b"1").result()
    assert headers(broker) == [[]]


@pytest.mark.parametrize("found", [[("h", 1)], "h", [1]])
def test_wrong_result_of_the_function_fails_send(broker: EmbeddedBroker, found: Any) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, trace_headers=lambda: found) as producer:
        with pytest.raises(TypeError) as caught:
            producer.send("orders", b"1")
        assert caught.value.__notes__[-1].startswith("raised by the option trace.headers, ")


def test_option_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigException, match=r"option trace.headers cannot be 7: it must be opentelemetry, a function without arguments"):
        Producer({"bootstrap.servers": "127.0.0.1:1", "trace.headers": 7})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    with pytest.raises(ConfigException, match=r"trace.headers=opentelemetry needs a package: pip install opentelemetry-api"):
        Producer(bootstrap_servers="127.0.0.1:1", trace_headers="opentelemetry")
