"""What a client that waits says meanwhile, on a network that a manual clock drives."""

from __future__ import annotations

import errno
import io
import random
import sys
from typing import Any, cast

import pytest

from chaffinch.admin.options import ADMIN_TABLE
from chaffinch.cli.connection import open_client, warn
from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Backoff
from chaffinch.client.connections import Disconnected, Failed
from chaffinch.client.long_waits import SAID_AFTER_MS, SAID_AGAIN_MS
from chaffinch.client.sync_client import POLL_MS_MAX, SyncClient
from chaffinch.errors import TimeoutException
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime.clock import ManualClock


class PretendNetwork:
    """Nothing is heard, and each wait lets so much time pass; or everybody is refused at once."""

    def __init__(self, clock: ManualClock, *, refuses: bool) -> None:
        self._clock = clock
        self._refuses = refuses
        self._heard: list[Any] = []

    def send(self, address: Address, message: Any, token: Any, *, version_max: int | None, timeout_ms: int | None) -> None:
        if self._refuses:
            self._heard.append(Failed(address=address, token=token, reason="refused", was_sent=False))
            self._heard.append(Disconnected(address=address, reason="refused"))

    def poll(self, wait_ms: int) -> list[Any]:
        heard, self._heard = self._heard, []
        self._clock.advance(0 if heard else wait_ms)
        return heard

    def disconnect(self, address: Address, reason: str) -> None: ...

    def start_anew(self) -> None: ...

    def close(self) -> None: ...


def pretend(client: SyncClient, network: PretendNetwork) -> None:
    client._network.close()
    client._network = cast(Any, network)


@pytest.mark.parametrize(
    ("refuses", "why"),
    [(True, "no broker reachable at 127.0.0.1:9092 (refused)"), (False, "no answer from 127.0.0.1:9092 yet")],
    ids=["a dead port", "a broker that hangs"],
)
def test_who_waits_for_seconds_is_told_what_for_and_seldom_again(refuses: bool, why: str) -> None:
    clock, said = ManualClock(), []
    steady = Backoff(initial_ms=1000, max_ms=1000)
    client = SyncClient(
        "127.0.0.1:9092",
        timeout_ms=70_000,
        clock=clock,
        reconnect_backoff=steady,
        dice=random.Random(1),
        on_wait=lambda text: said.append((clock.now_ms(), text)),
    )
    pretend(client, PretendNetwork(clock, refuses=refuses))
    with pytest.raises(TimeoutException):
        client.refresh_metadata()
    assert len(said) == 3
    for (now_ms, text), due_ms in zip(said, (3_000, 33_000, 63_000), strict=True):
        assert due_ms <= now_ms < due_ms + 2_500
        left_ms = 70_000 - now_ms
        assert text == f"metadata request, for {now_ms} ms: {why}; still asking, for up to {left_ms} ms more"


def test_what_the_broker_was_asked_to_wait_for_is_no_silence() -> None:
    clock, said = ManualClock(), []
    client = SyncClient("127.0.0.1:9092", clock=clock, dice=random.Random(1), on_wait=lambda text: said.append(clock.now_ms()))
    pretend(client, PretendNetwork(clock, refuses=False))
    with pytest.raises(TimeoutException):
        client.request(FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=[]), timeout_ms=7_900)
    assert said == []
    with pytest.raises(TimeoutException):
        client.request(FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=[]), timeout_ms=9_000)
    assert [now_ms - 7_900 for now_ms in said] == [8_000]


def test_many_calls_that_take_long_are_spoken_of_as_seldom_as_one() -> None:
    clock, said = ManualClock(), []
    client = SyncClient("127.0.0.1:9092", clock=clock, dice=random.Random(1), on_wait=lambda text: said.append(clock.now_ms()))
    pretend(client, PretendNetwork(clock, refuses=False))
    for _ in range(10):
        with pytest.raises(TimeoutException):
            client.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    first, second = said
    assert first < SAID_AFTER_MS + POLL_MS_MAX
    assert SAID_AGAIN_MS <= second - first < SAID_AGAIN_MS + 5_000


def test_commands_say_it_on_stderr_and_keep_stdout_clean(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with open_client(ADMIN_TABLE.parse({"bootstrap.servers": "127.0.0.1:9092", "default.api.timeout.ms": 5_000})) as client:
        monkeypatch.setattr(client, "_clock", clock)
        pretend(client, PretendNetwork(clock, refuses=True))
        with pytest.raises(TimeoutException):
            client.refresh_metadata()
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("chaffinch: metadata request, for ")


def test_what_nobody_can_be_told_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    clock = ManualClock()
    monkeypatch.setattr(sys, "stderr", Full())
    warn("this was left out")
    with open_client(ADMIN_TABLE.parse({"bootstrap.servers": "127.0.0.1:9092", "default.api.timeout.ms": 5_000})) as client:
        monkeypatch.setattr(client, "_clock", clock)
        pretend(client, PretendNetwork(clock, refuses=True))
        with pytest.raises(TimeoutException):
            client.refresh_metadata()
