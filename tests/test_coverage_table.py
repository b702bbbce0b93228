"""The table of `make coverage`: files summed by package."""

from typing import Any

import pytest

from tools import coverage_table


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("src/chaffinch/settings.py", "chaffinch"),
        ("src/chaffinch/records/kernels/walk.py", "records"),
        ("src/chaffinch/broker/server.py", "broker"),
        ("src/chaffinch/broker/core/handlers/produce.py", "broker/core"),
        ("src/chaffinch/spark/session.py", "spark"),
        ("src/chaffinch/spark/commit/verdict.py", "spark/commit"),
    ],
)
def test_packages(path: str, package: str) -> None:
    assert coverage_table.package(path) == package


def measured(lines: int, lines_missed: int, branches: int, branches_missed: int) -> dict[str, Any]:
    return {"summary": dict(zip(coverage_table.COUNTS, (lines, lines_missed, branches, branches_missed), strict=True))}


def test_rows_are_summed_by_package_and_in_all() -> None:
    files = {
        "src/chaffinch/records/batch.py": measured(10, 1, 4, 2),
        "src/chaffinch/records/kernels/walk.py": measured(20, 0, 6, 1),
        "src/chaffinch/__init__.py": measured(0, 0, 0, 0),
        "src/pyspark_chaffinch/__init__.py": measured(2, 2, 0, 0),
    }
    assert coverage_table.rows(files) == [
        ("chaffinch", "0", "0", "0", "0", "-"),
        ("records", "30", "1", "10", "3", "90.0 %"),
        ("all", "30", "1", "10", "3", "90.0 %"),
    ]
