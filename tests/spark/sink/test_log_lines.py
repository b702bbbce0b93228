"""What a worker of Spark's shows of the log."""

import subprocess
import sys

import pytest

LOG = (
    "import logging; from chaffinch.spark.sink.committer import enable_info_log; {}; enable_info_log(); enable_info_log(); "
    "logging.getLogger('{}').info('a line')"
)


@pytest.mark.parametrize(
    ("configured", "logger", "lines"),
    [
        ("pass", "chaffinch.spark.sink.committer", 1),
        ("pass", "another", 0),
        ("logging.basicConfig(level=logging.WARNING)", "chaffinch.spark.sink.committer", 0),
        ("logging.basicConfig(level=logging.INFO)", "chaffinch.spark.sink.committer", 1),
        ("logging.getLogger('chaffinch.spark').setLevel(logging.ERROR)", "chaffinch.spark.sink.committer", 0),
    ],
    ids=["not configured", "of others", "configured for warnings", "configured for all", "a level of its own"],
)
def test_lines_seen(configured: str, logger: str, lines: int) -> None:
    done = subprocess.run([sys.executable, "-c", LOG.format(configured, logger)], capture_output=True, text=True, check=True)
    assert done.stderr.count("a line") == lines
