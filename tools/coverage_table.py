"""Coverage per package: prints one line for each package from the data of `make coverage`.

Only the test processes are measured, not the processes that they start (Spark's workers, commands). Compiled loops of records/kernels are
machine code and are not measured either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

COUNTS = ("num_statements", "missing_lines", "num_branches", "missing_branches")
TITLES = ("package", "lines", "not run", "branches", "not taken", "covered")


def package(path: str) -> str:
    """The package of a file: its directory in chaffinch; `core` and the parts of `spark` are separate packages."""
    first, *others = PurePath(path).relative_to("src/chaffinch").parent.parts or ("chaffinch",)
    return f"{first}/{others[0]}" if others and (others[0] == "core" or first == "spark") else first


def rows(files: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table by package, and their sum, from the files of coverage's JSON report."""
    sums: dict[str, Counter[str]] = {}
    for path, measured in files.items():
        if path.startswith("src/chaffinch/"):
            counts = Counter({name: measured["summary"][name] for name in COUNTS})
            sums.setdefault(package(path), Counter()).update(counts)
    table = [*sorted(sums.items()), ("all", sum(sums.values(), Counter()))]
    return [(name, *(str(counts[column]) for column in COUNTS), covered(counts)) for name, counts in table]


def covered(counts: Mapping[str, int]) -> str:
    """Share of executed lines and taken branches, as coverage computes it."""
    lines, lines_missed, branches, branches_missed = (counts[name] for name in COUNTS)
    whole = lines + branches
    return f"{100 * (whole - lines_missed - branches_missed) / whole:.1f} %" if whole else "-"


def main() -> None:
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--quiet"], check=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*coverage, "json", "--quiet", "-o", file.name], check=True)
        files = json.loads(Path(file.name).read_text(encoding="utf-8"))["files"]
    for row in (TITLES, *rows(files)):
        print(f"{row[0]:20}", *(f"{cell:>9}" for cell in row[1:]))
    print("\nNot measured: processes that tests start (Spark's workers, the command line), compiled loops (records/kernels).")
    print("Which lines and branches: .venv/bin/coverage report --show-missing --include='src/chaffinch/records/*'")


if __name__ == "__main__":
    main()
