"""How long a transaction waits before it asks again."""

from __future__ import annotations

import pytest

from chaffinch.errors import codes
from chaffinch.producer.core.transactions.requests import Step
from tests.producer.core.transactions.test_manager import STEPS, run_whole


@pytest.mark.parametrize("step", [step for step in STEPS if step is not Step.FIND_COORDINATOR], ids=lambda step: step.name)
def test_waits_grow_though_the_coordinator_is_found_each_time(step: Step) -> None:
    """From 100 ms to a second: 20 seconds of 100 ms would take all hundred answers."""
    rig = run_whole(step, *[codes.NOT_COORDINATOR] * 100)
    asked = [request for request in rig.requests if isinstance(request, STEPS[step])]
    assert 5 <= len(asked) <= 30
