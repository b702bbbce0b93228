"""Fixture that runs a test with each transaction version."""

from __future__ import annotations

import pytest

from tests.producer.core.rig import Rig


@pytest.fixture(params=[1, 2])
def transaction_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Transaction version of the cluster; the test runs with 1 and with 2."""
    version: int = request.param
    monkeypatch.setattr(Rig, "transaction_version", version)
    return version
