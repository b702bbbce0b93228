"""Imports of the processes of a write: Spark starts new ones, one after another, and a single write waits for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from chaffinch.broker.embedded import EmbeddedBroker

ROLES = """
import json, pickle, sys
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from chaffinch.spark.data_source import ChaffinchDataSource

def loaded():
    return sorted(sys.modules)

schema = StructType([StructField(name, BinaryType()) for name in ("key", "value")])
writer = ChaffinchDataSource(json.loads(sys.argv[1])).writer(schema, False)
planned, state = loaded(), pickle.dumps(writer)
message = pickle.loads(state).write(iter([pa.record_batch({"key": [b"a"], "value": [b"1"]})]))
assert message.outcome.failure is None, message.outcome.failure
print(json.dumps({"planner": planned, "task": loaded()}))
"""
"""A planner, and a task that follows it in the same process."""

COMMIT = (
    "chaffinch.spark.commit.direct", "chaffinch.spark.commit.operations", "chaffinch.spark.commit.plan", "chaffinch.spark.commit.protocol",
    "chaffinch.spark.commit.push", "chaffinch.spark.commit.requests",
    "chaffinch.spark.sink.commit_shell", "chaffinch.spark.sink.committer",
)  # fmt: skip
RECORDS = ("chaffinch.records.batch", "chaffinch.records.batch_codec", "crc32c", "cramjam")
ELSEWHERE = (
    "chaffinch.broker", "chaffinch.consumer", "chaffinch.producer.producer", "simulation", "chaffinch.spark.replay",
    "chaffinch.spark.source", "chaffinch.spark.supervision", "llvmlite", "numba", "pandas.core.frame",
)  # fmt: skip


@pytest.fixture(scope="module")
def modules() -> dict[str, list[str]]:
    """The modules of each role, by its name."""
    with EmbeddedBroker(topics={"orders": {"partitions": 2}}) as broker:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}
        done = subprocess.run([sys.executable, "-c", ROLES, json.dumps(options)], capture_output=True, text=True, check=True)
    modules: dict[str, list[str]] = json.loads(done.stdout)
    return modules


@pytest.mark.parametrize(("role", "needless"), [("planner", (*COMMIT, *RECORDS, *ELSEWHERE)), ("task", (*COMMIT, *ELSEWHERE[:-3]))])
def test_role_imports_no_modules_of_another(modules: Mapping[str, Sequence[str]], role: str, needless: tuple[str, ...]) -> None:
    assert not set(needless) & set(modules[role])


def test_listed_modules_exist(modules: Mapping[str, Sequence[str]]) -> None:
    """A name that is written wrong would keep nothing out."""
    assert {"chaffinch.spark.target", "chaffinch.spark.commit.timeout"} <= set(modules["planner"])
    assert {*RECORDS, "chaffinch.spark.tasks.task_stager"} <= set(modules["task"])
    code = f"import sys, chaffinch.spark.sink.commit_shell, chaffinch.spark.sink.committer; print(set({COMMIT!r}) <= set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
