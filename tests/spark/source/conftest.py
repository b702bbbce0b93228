"""A broker with two topics for tests of the source, and readers of them as Spark makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.pending_request import Deadline
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.runtime.clock import ManualClock
from chaffinch.spark.source.batch_reader import planned_reader
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.source.stream_reader import TopicStreamReader
from chaffinch.spark.target import client_for, forget_client
from tests.spark.source.reader_driver import SCHEMA
from tests.spark.source.source_topics import fill


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.setattr("chaffinch.spark.source.topic_discovery.UNKNOWN_TOPIC_PAUSE_MS", 10)
    with EmbeddedBroker(topics={"a": {"partitions": 2}, "b": {"partitions": 1}}) as broker:
        servers = broker.bootstrap_servers
        shared = SourceOptions.parse({"kafka.bootstrap.servers": servers, "subscribe": "a"})
        clock = ManualClock()

        def stream(*, is_batch: bool = False, **given: str | Mapping[str, Any]) -> object:
            """A reader as Spark makes it: options travel, names in small letters."""
            chosen = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "a"}
            options = {"kafka.bootstrap.servers": servers, **chosen, **given}
            small = {name.lower(): value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
            if is_batch:
                return planned_reader(small, SCHEMA)
            return TopicStreamReader(SourceOptions.parse(small, is_stream=True), clock)

        yield SimpleNamespace(
            servers=servers,
            broker=broker,
            clock=clock,
            client=client_for(shared.client),
            stream=stream,
            fill=lambda topic, counts, **given: fill(servers, topic, counts, **given),
        )
        forget_client(shared.client)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that gives nothing is asked at once whether that is its end, and not after kafka.default.api.timeout.ms."""
    really = SyncClient.deadline

    def deadline(
        client: SyncClient,
        timeout_ms: int | None,
        what: str,
        message: DeleteTopicsRequest | FetchRequest | ListOffsetsRequest | None = None,
    ) -> Deadline:
        return really(client, 0 if what.startswith("reading") else timeout_ms, what, message)

    monkeypatch.setattr(SyncClient, "deadline", deadline)
