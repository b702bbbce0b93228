"""`python -m chaffinch.records.kernels`: compile every loop and keep it in the cache, so that no later process has to."""

from __future__ import annotations

from chaffinch.records import kernels


def main() -> int:
    if kernels.load():
        print("compiled loops: in the cache")
    else:
        print(f"compiled loops: none ({kernels.missing_reason()}); the reference implementation is used, a hundred times slower")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
