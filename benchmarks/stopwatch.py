"""What a client load takes: seconds and processor time of its own process, and what it prints about itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

Load = Callable[[str, str, int], dict[str, float]]

READY_BYTES_VARIABLE: Final = "CHAFFINCH_BENCH_READY_BYTES"
"""Of the environment: how much memory a load takes, and what it has written with it. It is made ready just before the time begins."""


RECLAIM_SECONDS: Final = 2.5
"""So long after memory was freed the host of a virtual machine has taken it back. If that begins in the middle of a load, the host takes
what was made ready for it as well."""


def prefault_memory(size: int) -> None:
    """Have the machine hand out so many bytes, which the next load takes: written to and given back, they lie ready for whoever asks first.
    The host of a virtual machine hands out anew what lay unused for two seconds, at several times the cost of writing to it."""
    len(b"\1" * size)


class Stopwatch:
    """Runs from its making; what came before it (imports, connections, warm-up) is not counted."""

    def __init__(self) -> None:
        if ready_bytes := int(os.environ.get(READY_BYTES_VARIABLE, "0")):
            time.sleep(RECLAIM_SECONDS)
            prefault_memory(ready_bytes)
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """`seconds` and `client_cpu_seconds`, all threads, so far."""
        return {"seconds": time.perf_counter() - self._started, "client_cpu_seconds": time.process_time() - self._cpu}


def one_at_a_time(call: Callable[[], object], count: int) -> dict[str, float]:
    """One call, its acknowledgement, the next: the latencies' percentiles in ms. A tenth more calls go before to warm up."""
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
    """`LOAD SERVERS TOPIC COUNT`: run one load and print what it tells as one JSON object."""
    load, servers, topic, count = arguments
    print(json.dumps(loads[load](servers, topic, int(count))))
    return 0
