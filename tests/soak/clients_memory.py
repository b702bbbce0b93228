"""Memory, file descriptors and threads of processes over time, as the system counts them, and whether they grow.

A process is looked at every second. Of its samples in the last part of a run (the window) the first and the last third are compared by
their medians: what a kill or a rebalance does for a moment does not count, what is never given back does. A broker lives for seconds: of
each of its lives one sample counts, the last one, and thirds are compared by their maxima, because some lives end before the compiled
loops are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

MEGABYTE = 1 << 20
GROWTH_BYTES_MAX = 8 * MEGABYTE
GROWTH_SHARE_MAX = 0.08
"""What may come on top within the window: the larger of the two."""
COUNT_GROWTH_MAX = 2
"""More file descriptors, or threads."""
SAMPLES_MIN = 9


class Sample(NamedTuple):
    at_s: float
    resident_bytes: int
    file_descriptors: int
    threads: int


def sample(pid: int, at_s: float) -> Sample | None:
    """None if the process has just ended."""
    process = Path(f"/proc/{pid}")
    try:
        facts = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        descriptors = sum(_counts(descriptor) for descriptor in list((process / "fd").iterdir()))
        return Sample(at_s, int(facts["VmRSS"].split()[0]) * 1024, descriptors, int(facts["Threads"]))
    except (OSError, KeyError):
        return None


def _counts(descriptor: Path) -> bool:
    """Whether it is there, and none of a log: a broker keeps these open, and there are more of them the more was written."""
    try:
        return descriptor.readlink().suffix != ".log"
    except OSError:
        return False


@dataclass(slots=True)
class Memory:
    """Samples of each process by name; a new life starts a new list, except for those named in `across_lives`."""

    across_lives: frozenset[str] = frozenset()
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)

    def look(self, name: str, pid: int, at_s: float) -> None:
        samples = self.samples.setdefault(name, [])
        found = sample(pid, at_s)
        if found is None:
            return
        if name in self.across_lives:
            if self._pids.get(name) == pid:
                samples.pop()
        elif self._pids.get(name) != pid:
            samples.clear()
        self._pids[name] = pid
        samples.append(found)

    def now(self) -> str:
        """`name 95 MB/14/3`: resident, file descriptors, threads."""
        latest = {name: samples[-1] for name, samples in self.samples.items() if samples}
        return ", ".join(
            f"{name} {found.resident_bytes / MEGABYTE:.0f} MB/{found.file_descriptors}/{found.threads}" for name, found in latest.items()
        )

    def growth(self, window_begins_s: float) -> tuple[list[str], list[str]]:
        """(a line for each process of which enough is known, faults)."""
        lines, faults = [], []
        for name, samples in self.samples.items():
            window = [found for found in samples if found.at_s >= window_begins_s]
            if len(window) < SAMPLES_MIN:
                faults.append(f"{name} has only {len(window)} samples of memory, {SAMPLES_MIN} are needed: whether it grows is not known")
                continue
            third = len(window) // 3
            typical = max if name in self.across_lives else median
            begin, end = (Sample(*(typical(column) for column in zip(*part, strict=True))) for part in (window[:third], window[-third:]))
            more = end.resident_bytes - begin.resident_bytes
            minutes = (end.at_s - begin.at_s) / 60
            lines.append(
                f"{name}: {begin.resident_bytes / MEGABYTE:.1f} -> {end.resident_bytes / MEGABYTE:.1f} MB in {minutes:.1f} minutes, "
                f"file descriptors {begin.file_descriptors:.0f} -> {end.file_descriptors:.0f}, "
                f"threads {begin.threads:.0f} -> {end.threads:.0f}"
            )
            if more > max(GROWTH_BYTES_MAX, GROWTH_SHARE_MAX * begin.resident_bytes):
                faults.append(f"{name} grew by {more / MEGABYTE:.1f} MB")
            faults += [
                f"{name} has {last - first:.0f} more {what}"
                for what, first, last in (
                    ("file descriptors", begin.file_descriptors, end.file_descriptors),
                    ("threads", begin.threads, end.threads),
                )
                if last - first > COUNT_GROWTH_MAX
            ]
        return lines, faults
