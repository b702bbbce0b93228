"""What is so in each version of transactions."""

from __future__ import annotations

import pytest

from tests.producer.core.rig import Rig


@pytest.fixture(params=[1, 2])
def transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Which the cluster speaks; the test is run in both."""
    version: int = request.param
    monkeypatch.setattr(Rig, "transaction_version", version)
    return version
