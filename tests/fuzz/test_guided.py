"""A few inputs for each target of the guided fuzzer in every test run; `make fuzz` has it go on. Also that it is guided, where it is."""

from __future__ import annotations

import importlib.util
import random
from importlib import import_module
from typing import Any

import pytest

from chaffinch.protocol.frames import FrameAssembler
from chaffinch.protocol.headers import read_client_id
from chaffinch.records import kernels
from tests.fuzz import guided
from tests.fuzz.batch_fuzzer import damage

PLANTED_RUNS = 500_000
needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="not run: `make fuzz` installs atheris")


def check_some(target: Any, rounds: int) -> None:
    """Every seed as it is, then damaged ones."""
    rng = random.Random(1)
    seeds = list(target.seeds())
    for data in seeds:
        target.check(data)
    for _ in range(rounds):
        data = bytearray(rng.choice(seeds))
        damage(rng, data, 0)
        target.check(bytes(data))


@pytest.mark.parametrize("name", guided.TARGETS)
def test_target_accepts_seeds_and_damaged_seeds(name: str) -> None:
    check_some(import_module(f"tests.fuzz.targets.{name}"), 300)


def late_frames(self: FrameAssembler, count: int) -> list[memoryview]:
    frames = original_buffer_updated(self, count)
    return frames[:-1] if len(frames) > 2 else frames


original_buffer_updated = FrameAssembler.buffer_updated
BREAKAGES = {
    "streams": ("chaffinch.protocol.frames.FrameAssembler.buffer_updated", late_frames),
    "messages": ("chaffinch.protocol.server_connection.read_client_id", lambda *given: (read_client_id(*given)[0], 11)),
    "batches": ("chaffinch.records.kernels.REFERENCE", kernels.Loops),
}


@pytest.mark.parametrize("name", guided.TARGETS)
def test_target_finds_an_injected_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, broken = BREAKAGES[name]
    scan = kernels.REFERENCE.scan
    if name == "batches":
        fields = {field: getattr(kernels.REFERENCE, field) for field in kernels.Loops.__slots__}
        broken = kernels.Loops(**fields | {"scan": lambda *given: scan(*given) and 7})
    monkeypatch.setattr(place, broken)
    with pytest.raises(AssertionError):
        check_some(import_module(f"tests.fuzz.targets.{name}"), 300)


@needs_atheris
def test_guided_fuzzing_finds_the_planted_fault() -> None:
    planted: Any = import_module("tests.fuzz.targets.planted")
    rng = random.Random(1)
    for _ in range(PLANTED_RUNS):
        planted.check(rng.randbytes(rng.randrange(20)))
    with pytest.raises(AssertionError, match="the fault that was planted"):
        guided.run("planted", 1, PLANTED_RUNS)


@needs_atheris
def test_seed_and_run_count_determine_everything() -> None:
    assert guided.run("streams", 3, 1000) == guided.run("streams", 3, 1000)
