"""Writes messages.txt: a fixed sample of every message in every version, encoded by kafka-python, not by Chaffinch.

Run it after describing a new message or version: `python -m tests.golden.write_messages`.
"""

from __future__ import annotations

from pathlib import Path

from tests.protocol.instances import CASES, name_of, sample, to_kafka_python

PATH = Path(__file__).with_name("messages.txt")


def main() -> None:
    lines = []
    for cls, version in CASES:
        twin = to_kafka_python(sample(cls, version), version)
        lines.append(f"{name_of((cls, version))} {bytes(twin.encode(version=version)).hex()}\n")
    PATH.write_text("".join(lines))


if __name__ == "__main__":
    main()
