"""Syncs that fail, and mistakes of the broker's own: whom they cost what."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.effect_runner import SYNC_SUCCEEDED
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.broker_probes import is_alive
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], config={"socket.request.max.bytes": 1 << 20, "queued.max.request.bytes": 3 << 20}) as broker:
        yield broker


def test_response_with_failed_sync_is_not_sent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": "always"}) as broker, SocketClient(broker.bootstrap_servers) as client:

        def fail() -> None:
            raise StorageError("orders.log", "sync", "input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(broker._running.core, "sync", fail)
            client.send(produce_request("missing", batch_of(b"a")))
            with pytest.raises(ConnectionError):
                client.receive()
        assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text, "what is said of the request has nothing to do with the disk"
        caplog.clear()
        assert is_alive(broker)
        assert is_alive(broker)
        assert caplog.messages == [SYNC_SUCCEEDED]


def test_failed_sync_is_logged_once_and_lasts_until_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = EmbeddedBroker(topics=["orders"], data_dir=tmp_path, config={"flush.policy": "always"})
    try:
        real = os.fdatasync
        failed: list[int] = []

        def fail_once(descriptor: int) -> None:
            if failed or not os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
                return real(descriptor)
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", fail_once)
        with SocketClient(broker.bootstrap_servers) as client, pytest.raises(ConnectionError):
            client.ask(produce_request("orders", batch_of(b"a")))
        for _ in range(2):
            with SocketClient(broker.bootstrap_servers, greet=False) as client, pytest.raises(ConnectionError):
                client.ask(client.connection.api_versions_request())
    finally:
        with contextlib.suppress(StorageError):
            broker.close()
    assert len(failed) == 1
    (message,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert message.startswith(f"cannot sync {tmp_path}/logs/orders")
    for part in ("Input/output error", "may be lost", "connections are closed", "restart the broker"):
        assert part in message
    with EmbeddedBroker(data_dir=tmp_path) as again:
        assert is_alive(again)


def test_internal_failure_closes_one_connection(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = broker._running
    original = server.core.apply

    def fail_on_produce(event: object, steady_ms: int) -> object:
        if getattr(getattr(event, "request", None), "api", None) is not None and event.request.api.key == 0:  # type: ignore[attr-defined]
            raise RuntimeError("a mistake of ours")
        return original(event, steady_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(server.core, "apply", fail_on_produce)
    with SocketClient(broker.bootstrap_servers) as client:
        client.send(produce_request("orders", batch_of(b"a")))
        assert client.is_closed_by_peer()
    assert is_alive(broker)
    assert any("failed on its request" in record.getMessage() for record in caplog.records)
