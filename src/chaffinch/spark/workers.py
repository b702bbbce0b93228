"""Checks of Spark workers for the packages of the format, and advice for errors of Spark itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaffinch.public_names import exported_from
from chaffinch.spark.refusals import tag_in
from chaffinch.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("chaffinch", "pyarrow", "numpy", "numba", "crc32c", "cramjam")
"""Packages that a worker's Python must have."""
_SHIP: Final = "install it for that Python on every worker, or ship it with the query (docs/how-to/spark-cluster.md)"

_ADVICE: Final = (
    (
        r"PYTHON_VERSION_MISMATCH",
        "driver and workers run different versions of Python: before the session starts, set PYSPARK_PYTHON to one that has the same "
        "version as the driver's and is installed on every worker",
    ),
    (
        r"No module named 'chaffinch\.\w+\.|Can't get attribute '\w+' on <module 'chaffinch['.]"
        r"|module 'chaffinch(?:\.\w+)?' has no attribute",
        "a worker has a different version of Chaffinch than the driver: install the same version everywhere (docs/how-to/spark-cluster.md)",
    ),
    (
        r"No module named '(pyspark_chaffinch|" + "|".join(NEEDED) + r")\b",
        "the Python of a worker, or that of PYSPARK_PYTHON on the driver, lacks the package {0}: " + _SHIP,
    ),
    (
        r'Cannot run program "([^"]+)"',
        "there is no program {0} on a worker: before the session starts, set PYSPARK_PYTHON to a Python that every worker has",
    ),
    (
        r"UnsupportedClassVersionError",
        "a Java is too old for this Spark: install version 17 or newer on that machine and set JAVA_HOME there",
    ),
    (
        r"JAVA_GATEWAY_EXITED",
        "Java ended before Spark had started: the standard error of the driver above has the reason; often JAVA_HOME is not a Java of "
        "version 17 or newer, or spark.driver.memory is larger than the available memory",
    ),
    (
        r"DATA_SOURCE_NOT_FOUND.*?chaffinch",
        "Spark does not find the format chaffinch: in a thread other than the one that started the session, call session() before a write; "
        "otherwise the Python of PYSPARK_PYTHON on the driver lacks the package chaffinch: " + _SHIP,
    ),
    (
        r'No FileSystem for scheme "?([\w.+-]+)',
        "Spark has no driver for locations that begin with {0}: put checkpointLocation on a file system that it supports, or give the "
        "session the driver's jar (spark.jars.packages; for s3a: org.apache.hadoop:hadoop-aws)",
    ),
    (
        r"Class (org\.apache\.hadoop\.fs\.[\w.]+) not found",
        "Spark lacks the driver of a file system, {0}: put checkpointLocation on one that it supports, or give the session the driver's "
        "jar (spark.jars.packages)",
    ),
    (
        r"mkdir of (\S+) failed",
        "Spark cannot create the folder {0}: choose a checkpointLocation that it can write to and that has no file in its path",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming (?:queries|jobs)",
        "another run uses the same checkpointLocation: stop it; different queries need different checkpoints",
    ),
    (
        r"does not support Update mode",
        "Spark does not support output mode update for formats in Python: write with foreachBatch(KafkaSink(...)) "
        "(docs/how-to/spark-several-outputs.md)",
    ),
    (
        r"Python worker failed to connect back",
        "a Python that Spark has started did not answer within 10 seconds: either the machine is too busy, so start the query again; or it "
        "ended immediately, for example because the Python of a Spark Connect server lacks the packages of pyspark[connect]",
    ),
)
"""(pattern in the text of Spark, advice). The first match counts; `{0}` is its group."""


@exported_from("chaffinch.spark")
class WorkersUnfit(RuntimeError):
    """Workers cannot run queries of the format. The message has one line: the problem, the host and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Report of one worker's Python. `versions`: package -> its version; None if it is missing, "" if it has no version."""

    host: str
    executable: str
    versions: Mapping[str, str | None]


def check_workers(spark: SparkSession) -> None:
    """Check the packages of the workers' Pythons in one small job. Raises WorkersUnfit.

    Reaches the executors that exist when it runs, with one task for each core.
    """
    count = max(2, spark.sparkContext.defaultParallelism)
    try:
        found = spark.sparkContext.parallelize(range(count), count).mapPartitions(_version_probe()).collect()
    except Exception as error:
        advice = advice_for(str(error))
        if advice is None:
            raise
        raise WorkersUnfit(f"the workers cannot be used: {advice}") from None
    workers = [Worker(host=host, executable=executable, versions=versions) for host, executable, versions in found]
    if reason := unfit(workers):
        raise WorkersUnfit(reason)


def check_server(spark: SparkSession, remote: str) -> None:
    """Check that a Spark Connect server supports the format. Raises WorkersUnfit. Its workers are not checked.

    A function sent to the workers could check them, but it needs the client's Python version there, which the format does not.
    """
    try:
        _ = spark.read.format("chaffinch").load().schema
    except Exception as error:
        text = str(error)
        if tag_in(text) is not None:  # An error of the format itself, about missing options.
            return
        advice = advice_for(text)
        if advice is None:
            raise
        raise WorkersUnfit(f"the server {remote} cannot be used: {advice}") from None


def unfit(workers: Iterable[Worker], version: str = VERSION) -> str | None:
    """The first problem of a worker, on one line; None if there is none."""
    for worker in sorted(workers, key=lambda each: each.host):
        where = f"the worker's Python {worker.executable} on {worker.host}"
        missing = [name for name in NEEDED if worker.versions.get(name) is None]
        if missing:
            return f"{where} lacks {', '.join(missing)}: {_SHIP}"
        if worker.versions["chaffinch"] != version:
            return f"{where} has chaffinch {worker.versions['chaffinch']}, the driver has {version}: install the same version everywhere"
    return None


def advice_for(text: str) -> str | None:
    """One-line advice for an error of Spark itself; None if there is none."""
    for pattern, advice in _ADVICE:
        if found := re.search(pattern, text, re.DOTALL):
            return advice.format(*found.groups())
    return None


def _version_probe() -> Callable[[Iterable[int]], Iterator[tuple[str, str, dict[str, str | None]]]]:
    """The function that runs in a worker. It is pickled by value, without this module, because Chaffinch may be missing there."""
    needed: Sequence[str] = NEEDED

    def probe(_: Iterable[int]) -> Iterator[tuple[str, str, dict[str, str | None]]]:
        import importlib.util
        import os
        import socket
        import sys

        versions: dict[str, str | None] = {name: "" if importlib.util.find_spec(name) else None for name in needed}
        if versions["chaffinch"] is not None:
            versions["chaffinch"] = importlib.import_module("chaffinch.version").VERSION
        host = os.environ.get("SPARK_LOCAL_HOSTNAME") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
        yield host, sys.executable, versions

    return probe
