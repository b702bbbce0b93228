"""`make versions`: our clients and the Spark format on other versions of Apache Kafka and on the pinned one. Prints
docs/reference/kafka-versions.md.

    python -m tests.interop.versions                   # every version; 75 minutes
    python -m tests.interop.versions 2.8.2 3.9.1       # only these; results go to the terminal only

Each version is run by `our_clients` and `our_spark` in processes of their own. Exits with 1 if a test fails unexpectedly.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.interop.apache_kafka import kafka_version
from tests.interop.expected_differences import EXPECTED, ExpectedDifference
from tests.interop.installing import ROOT
from tests.interop.other_kafka import VERSIONS, numbers, uses_kraft
from tests.interop.our_clients import LINE_MAX, OUR_CLIENTS, End
from tests.interop.our_spark import OUR_SPARK
from tests.interop.processes import run

PAGE = ROOT / "docs" / "reference" / "kafka-versions.md"
MODULES = {"tests.interop.our_clients": OUR_CLIENTS.name, "tests.interop.our_spark": OUR_SPARK.name}
HOURS_S = 3 * 3600.0

_PART = re.compile(r"(<!-- seen by make versions -->\n).*?(<!-- end -->)", re.DOTALL)
_TOLD = re.compile(r"^(.+) on Apache Kafka (\S+): (\d+) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one table of tests came to on one version."""

    succeeded: bool
    counts: Mapping[End, int]

    @property
    def as_cell(self) -> str:
        """`812 of 814`: those that came to the same end, of all that came to one."""
        if not self.counts:
            return "not run"
        same, meant, wrong = (self.counts[end] for end in (End.SAME, End.EXPECTED, End.WRONG))
        return f"{same} of {same + meant + wrong}"


def read_counts(output: str) -> dict[End, int]:
    """How many tests came to which end, from what `our_clients.run_tests` printed; empty where it did not."""
    return {End(end): int(count) for _, _, count, end in _TOLD.findall(output)}


def page_part(seen: Mapping[str, Sequence[Seen]], meant: Sequence[ExpectedDifference] = EXPECTED) -> str:
    """The table, one line a version, and the reasons."""
    lines = [f"| Apache Kafka | leads itself | {' | '.join(MODULES.values())} |", "|---" * (2 + len(MODULES)) + "|"]
    for version, cells in seen.items():
        leader = "yes" if uses_kraft(version) else "by ZooKeeper"
        lines.append(f"| {version} | {leader} | {' | '.join(each.as_cell for each in cells)} |")
    lines.append("")
    for why in dict.fromkeys(each.why for each in meant):
        lines += textwrap.wrap(f"- {why}", LINE_MAX, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main(versions: Sequence[str]) -> int:
    """The exit status."""
    seen: dict[str, list[Seen]] = {}
    for version in versions or sorted((*VERSIONS, kafka_version()), key=numbers):
        for module in MODULES:
            done = run([sys.executable, "-m", module, "--version", version, "-q", "--no-header"], timeout_s=HOURS_S, folder=ROOT)
            found = Seen(succeeded=done.succeeded, counts=read_counts(done.output))
            seen.setdefault(version, []).append(found)
            print("" if done.succeeded else done.output + done.errors, f"{version}: {module}: {found.as_cell}", sep="", flush=True)
    if not versions:
        before = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_PART.sub(lambda part: part[1] + page_part(seen) + part[2], before), encoding="utf-8")
    return 0 if all(each.succeeded for cells in seen.values() for each in cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
