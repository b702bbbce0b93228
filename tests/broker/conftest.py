"""What several files of the broker's tests need."""

import pytest

from chaffinch.broker import connections
from tests.broker.fake_connection import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """How long turns of the loop last stands still until a test lets it go on."""
    clock = Clock()
    monkeypatch.setattr(connections, "perf_counter", lambda: clock.now_s)
    return clock
