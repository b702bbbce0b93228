"""What a client load takes: seconds and processor time of its own process, and what it prints about itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

Load = Callable[[str, str, int], dict[str, float]]


class Stopwatch:
    """Runs from its making; what came before it (imports, connections, warm-up) is not counted."""

    def __init__(self) -> None:
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """`seconds` and `client_cpu_seconds`, all threads, so far."""
        return {"seconds": time.perf_counter() - self._started, "client_cpu_seconds": time.process_time() - self._cpu}


def one_at_a_time(ask: Callable[[], object], count: int) -> dict[str, float]:
    """One call, its acknowledgement, the next: the latencies' percentiles in ms. A tenth more calls go before to warm up."""
    for _ in range(count // 10):
        ask()
    latencies: list[float] = []
    watch = Stopwatch()
    for _ in range(count):
        started = time.perf_counter()
        ask()
        latencies.append((time.perf_counter() - started) * 1000)
    latencies.sort()
    return {**watch.read(), "p50": latencies[count // 2], "p99": latencies[count * 99 // 100]}


def run_load(loads: Mapping[str, Load], arguments: list[str]) -> int:
    """`LOAD SERVERS TOPIC COUNT`: run one load and print what it tells as one JSON object."""
    load, servers, topic, count = arguments
    print(json.dumps(loads[load](servers, topic, int(count))))
    return 0
