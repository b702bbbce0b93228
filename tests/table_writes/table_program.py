"""A scheduled run: `table_program.py SERVERS TOKEN ROWS`, which writes a table with good and bad rows and prints the result.

A test lets it pause at a step of the commit, and kills it there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from chaffinch import write_table

TOPIC, DEAD = "orders", "dead"
BAD_EVERY = 10


def table_of(count: int) -> pa.Table:
    """Rows 0 to count - 1; every tenth has no key, which the compacted topic refuses."""
    keys = [None if number % BAD_EVERY == 0 else f"k{number}" for number in range(count)]
    return pa.table({"key": pa.array(keys, pa.string()), "value": [f"v{number}" for number in range(count)]})


def write(servers: str, token: str, count: int, folder: str) -> str:
    result = write_table(
        table_of(count), TOPIC, idempotency_token=token, dead_letters=DEAD, dead_letter_path=Path(folder), bootstrap_servers=servers
    )
    return f"{result.outcome} {result.written}"


if __name__ == "__main__":
    print(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
