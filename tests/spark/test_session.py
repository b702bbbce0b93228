"""What `session` sets in a session, and what it leaves as somebody else has set it."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.spark.session import _configured

BYTES, RECORDS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
OURS = {BYTES: "2147483647", RECORDS: "2000"}


class PlayedBuilder:
    """As much of Spark's builder, and of the configuration of the session that it makes, as `session` uses."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = dict(known)

    def config(self, key: str, value: str) -> PlayedBuilder:
        self.known[key] = value
        return self

    def getOrCreate(self) -> PlayedBuilder:
        return self

    @property
    def conf(self) -> PlayedBuilder:
        return self

    @property
    def getAll(self) -> dict[str, str]:
        return dict(self.known)

    def set(self, key: str, value: str) -> None:
        self.known[key] = value


@pytest.mark.parametrize(
    ("known", "given", "expected"),
    [
        ({}, {}, OURS),
        ({"spark.app.name": "a"}, {"spark.ui.enabled": False}, {"spark.app.name": "a", "spark.ui.enabled": "false", **OURS}),
        # Either is somebody's wish: half of ours beside it would be neither.
        ({}, {BYTES: "64m"}, {BYTES: "64m"}),
        ({}, {RECORDS: 500}, {RECORDS: "500"}),
        ({BYTES: "1m"}, {}, {BYTES: "1m"}),
        ({RECORDS: "10000"}, {}, {RECORDS: "10000"}),
        ({RECORDS: "10000"}, {RECORDS: 5}, {RECORDS: "5"}),
    ],
)
def test_batches_of_rows_for_python_are_bounded_by_their_number_unless_somebody_says_how(
    known: dict[str, str], given: dict[str, Any], expected: dict[str, str]
) -> None:
    assert _configured(PlayedBuilder(known), given).conf.getAll == expected
