"""`make bench`: runs every benchmark in its own process, one after the other, so that none warms up or slows down another."""

import subprocess
import sys

PARTS = ("records", "validation", "broker", "producer", "asyncio_clients", "spark_sink")


def main() -> int:
    failed = [part for part in PARTS if subprocess.run([sys.executable, "-m", f"benchmarks.{part}"]).returncode != 0]
    for part in failed:
        print(f"benchmarks.{part} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
