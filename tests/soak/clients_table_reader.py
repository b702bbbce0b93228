"""The consumer that polls tables and commits itself."""

from __future__ import annotations

from tests.soak.clients_process import Life, live
from tests.soak.clients_reader import read


def run(life: Life) -> None:
    read(life, is_table=True)


if __name__ == "__main__":
    live(run)
