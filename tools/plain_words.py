"""Counts words and phrases that plain English does without, per package; `make lint` fails when a count has risen.

`tools/plain_words.csv` holds the counts: a row for each word, a column for each package. When a count has fallen,
`python -m tools.plain_words --write` writes the new counts; it never writes a higher one. Identifiers, comments, docstrings and
texts count alike.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS_FILE = ROOT / "tools" / "plain_words.csv"
THE_LIST_ITSELF = {"tools/plain_words.py", "tests/test_plain_words.py"}

WORDS: dict[str, str] = {
    "told": r"told",
    "tells": r"tells?(?!\s+apart|\(\))",  # `file.tell()` is Python's own.
    "hears": r"hears?|heard",
    "nobody": r"nobody",
    "somebody": r"somebody|everybody|anybody",
    "whoever": r"whoever|whither|whosoever",
    "anew": r"anew",
    "in vain": r"in vain",
    "seldom": r"seldom",
    "meanwhile": r"(?<!REPLAYED_)meanwhile",  # The name of an error.
    "so many": r"so (?:many|late|dear)(?! that)",
    # "that of Kafka's `AbortedTxn`" is plain.
    "of Python's": r"of (?:Python|Spark|Kafka|Java|Arrow|PySpark|asyncio)'s(?!\s+(?:`|(?-i:[A-Z])))",
    "for nothing": r"is for nothing",
    "is no number": r"(?<!there )is no (?:integer|number|string|bool|int|topic|file|folder|name)",
    "now_ms": r"(?-i:now_ms)",
}
"""Name of each row -> the pattern, matched between word boundaries (`_` is one) and in any case."""

Counts = dict[tuple[str, str], int]
"""(word, package) -> how often."""


def package_of(path: str) -> str:
    """`src/chaffinch/broker/core/x.py` is in `broker`, `src/chaffinch/settings.py` in `chaffinch`, `tests/broker/x.py` in `tests`."""
    parts = path.split("/")
    if parts[:2] != ["src", "chaffinch"]:
        return parts[1] if parts[0] == "src" else parts[0]
    return parts[2] if len(parts) > 3 else "chaffinch"


def count(files: Mapping[str, str]) -> Counts:
    """The counts of texts, by path."""
    found: Counts = {}
    for path, text in files.items():
        for word, pattern in WORDS.items():
            number = len(re.findall(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", text, re.IGNORECASE))
            key = (word, package_of(path))
            found[key] = found.get(key, 0) + number
    return found


def source_files() -> dict[str, str]:
    """The Python sources that the rule covers."""
    folders = ("src", "simulation", "benchmarks", "examples", "tools", "tests")
    paths = (path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if path not in THE_LIST_ITSELF}


def read_counts() -> Counts:
    with COUNTS_FILE.open(encoding="utf-8", newline="") as file:
        return {(row["word"], package): int(number) for row in csv.DictReader(file) for package, number in row.items() if package != "word"}


def write_counts(counts: Counts) -> None:
    packages = sorted({package for _, package in counts})
    with COUNTS_FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["word", *packages])
        writer.writerows([word, *(counts.get((word, package), 0) for package in packages)] for word in WORDS)


def risen(before: Counts, after: Counts) -> list[str]:
    """A line for each count that is higher than before. A package or a word without a row starts at 0."""
    return sorted(
        f"{package}: {word!r} {before.get((word, package), 0)} -> {number}"
        for (word, package), number in after.items()
        if number > before.get((word, package), 0)
    )


def main(arguments: list[str]) -> int:
    """The exit status: 1 if a count has risen."""
    before = read_counts() if COUNTS_FILE.exists() else {}
    after = count(source_files())
    if before and (lines := risen(before, after)):
        print("words that plain English does without (see CONTRIBUTING.md) have come in:", *lines, sep="\n  ")
        return 1
    if "--write" in arguments:
        write_counts(after)
    elif before != after:
        print("counts of tools/plain_words.csv have fallen, lower them: python -m tools.plain_words --write")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
