"""Stopwatch of a client load: seconds and processor time of its process, and its JSON output."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

Load = Callable[[str, str, int], dict[str, float]]

READY_BYTES_VARIABLE: Final = "CHAFFINCH_BENCH_READY_BYTES"
"""Environment variable: number of bytes that a load and its data need. They are faulted in just before the time begins."""


RECLAIM_SECONDS: Final = 2.5
"""Time after which the host of a virtual machine has reclaimed freed memory. If it began during a load, the host would also reclaim the
memory that was faulted in for the load."""


def prefault_memory(size: int) -> None:
    """Write to this many bytes and free them, so that the next load gets pages that are faulted in.

    The host of a virtual machine reclaims pages that are unused for two seconds. Getting them back costs several times as much as writing.
    """
    len(b"\1" * size)


class Stopwatch:
    """Measures from its creation; earlier work (imports, connections, warm-up) is not counted."""

    def __init__(self) -> None:
        if ready_bytes := int(os.environ.get(READY_BYTES_VARIABLE, "0")):
            time.sleep(RECLAIM_SECONDS)
            prefault_memory(ready_bytes)
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """`seconds` and `client_cpu_seconds` of all threads so far."""
        return {"seconds": time.perf_counter() - self._started, "client_cpu_seconds": time.process_time() - self._cpu}


def one_at_a_time(call: Callable[[], object], count: int) -> dict[str, float]:
    """Make `count` calls one after the other, after a tenth as many to warm up. Returns percentiles of the latency in ms."""
    for _ in range(count // 10):
        call()
    latencies: list[float] = []
    watch = Stopwatch()
    for _ in range(count):
        started = time.perf_counter()
        call()
        latencies.append((time.perf_counter() - started) * 1000)
    latencies.sort()
    return {**watch.read(), "p50": latencies[count // 2], "p99": latencies[count * 99 // 100]}


def run_load(loads: Mapping[str, Load], arguments: list[str]) -> int:
    """Run one load with the arguments `LOAD SERVERS TOPIC COUNT` and print its result as one JSON object."""
    load, servers, topic, count = arguments
    print(json.dumps(loads[load](servers, topic, int(count))))
    return 0
