"""What workers lack, and what is advised on Spark's own errors. On a cluster: `clusters/run_on_cluster.py`."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql import SparkSession

from chaffinch.spark.workers import NEEDED, Worker, WorkersUnfit, _version_probe, advice_for, check_server, unfit
from chaffinch.version import VERSION

ALL = dict.fromkeys(NEEDED, "") | {"chaffinch": "1.0"}


def worker(host: str = "host-a", **versions: str | None) -> Worker:
    return Worker(host=host, executable="/opt/python", versions=ALL | versions)


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], None),
        ([worker(), worker("host-b")], None),
        (
            [worker("host-b", numba=None, crc32c=None), worker()],
            "the worker's Python /opt/python on host-b lacks numba, crc32c: install it",
        ),
        ([worker(chaffinch=None)], "on host-a lacks chaffinch: install it for that Python on every worker, or ship it with the query"),
        ([worker(chaffinch="0.9")], "on host-a has chaffinch 0.9, the driver has 1.0: install the same version everywhere"),
        ([worker("b", chaffinch=None), worker("a", pyarrow=None)], "on a lacks pyarrow"),
    ],
)
def test_unfit_worker_is_reported(workers: Sequence[Worker], reason: str | None) -> None:
    found = unfit(workers, "1.0")
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11", "set PYSPARK_PYTHON"),
        ("ModuleNotFoundError: No module named 'chaffinch'", "lacks the package chaffinch: install it"),
        ("ModuleNotFoundError: No module named 'chaffinch.spark'", "lacks the package chaffinch: install it"),
        (
            "ModuleNotFoundError: No module named 'chaffinch.spark.versions'",
            "a worker has a different version of Chaffinch than the driver",
        ),
        (
            "AttributeError: Can't get attribute '_received' on <module 'chaffinch.spark.sink.writers' from",
            "a worker has a different version of Chaffinch than the driver",
        ),
        (
            "AttributeError: Can't get attribute 'FoundOffset' on <module 'chaffinch' from",
            "a worker has a different version of Chaffinch than the driver",
        ),
        (
            "AttributeError: module 'chaffinch' has no attribute 'FoundOffset'",
            "a worker has a different version of Chaffinch than the driver",
        ),
        ("AttributeError: module 'chaffinch.spark' has no attribute 'Refusal'", "a worker has a different version of Chaffinch"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "lacks the package pyarrow"),
        (
            'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file',
            "no program ./environment/bin/python",
        ),
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by", "version 17 or newer"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", "JAVA_HOME"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: chaffinch. Make sure", "does not find the format chaffinch"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure", None),
        ("org.apache.spark.SparkException: Python worker failed to connect back.", "did not answer within 10 seconds"),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"', "for locations that begin with s3: put"),
        ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "org.apache.hadoop.fs.s3a.S3AFileSystem: put"),
        ("java.io.IOException: mkdir of file:/proc/ck failed", "cannot create the folder file:/proc/ck: choose a checkpointLocation"),
        (
            "SparkConcurrentModificationException: Multiple streaming queries are concurrently using metadata.",
            "another run uses the same checkpointLocation: stop it",
        ),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", "another run uses the same checkpointLocation"),
        ("requirement failed: chaffinch does not support Update mode.", "foreachBatch(KafkaSink(...))"),
        ("No module named 'chaffinchlike'", None),
        ("KAFKA[InvalidConfiguration] CONFIG: unknown option", None),
        ("", None),
    ],
)
def test_spark_error_has_advice(text: str, advice: str | None) -> None:
    found = advice_for(text)
    assert (found is None) == (advice is None)
    assert (advice or "") in (found or "")
    assert found is None or "\n" not in found


class Server:
    """Stands for a session of Spark Connect whose server answers each question about the format with this error."""

    def __init__(self, error: str) -> None:
        self.read, self.error = self, error

    def format(self, name: str) -> Server:
        assert name == "chaffinch"
        return self

    def load(self) -> Server:
        return self

    @property
    def schema(self) -> NoReturn:
        raise RuntimeError(self.error)


def asked_server(error: str) -> SparkSession:
    return cast(SparkSession, Server(error))


def test_server_that_knows_format_is_accepted() -> None:
    check_server(asked_server("KAFKA[InvalidConfiguration] CONFIG: option kafka.bootstrap.servers is missing"), "sc://a")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: chaffinch.",
            WorkersUnfit,
            "the server sc://a cannot be used: Spark does not",
        ),
        ("[INTERNAL_ERROR] a bug", RuntimeError, "a bug"),
    ],
)
def test_server_without_format_is_refused(error: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        check_server(asked_server(error), "sc://a")


def test_version_probe_reports_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "host-b")
    look = pickle.loads(dumps(_version_probe()))
    assert list(look([])) == [("host-b", sys.executable, {**ALL, "chaffinch": VERSION})]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("chaffinch", "numba") else find_spec(name))
    ((_, _, versions),) = look([])
    assert {name for name, version in versions.items() if version is None} == {"chaffinch", "numba"}
