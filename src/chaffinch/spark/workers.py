"""Whether a cluster's workers have what the format needs, and what to do about errors that Spark tells in its own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaffinch.spark.refusals import tag_in
from chaffinch.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("chaffinch", "pyarrow", "numpy", "numba", "crc32c", "cramjam")
"""Packages that a worker's Python must have."""
_SHIP: Final = "install it for that Python on every worker, or ship it with the query (docs/spark-cluster.md)"

_ADVICE: Final = (
    (
        r"PYTHON_VERSION_MISMATCH",
        "driver and workers run different versions of Python: set PYSPARK_PYTHON, before the session begins, to one that is the same "
        "version as the driver's and is there on every worker",
    ),
    (
        r"No module named 'chaffinch\.\w+\.|Can't get attribute '\w+' on <module 'chaffinch\.",
        "a worker has another version of Chaffinch than the driver: install the same version everywhere (docs/spark-cluster.md)",
    ),
    (
        r"No module named '(pyspark_chaffinch|" + "|".join(NEEDED) + r")\b",
        "the Python of a worker, or that of PYSPARK_PYTHON on the driver, lacks the package {0}: " + _SHIP,
    ),
    (
        r'Cannot run program "([^"]+)"',
        "there is no program {0} on a worker: set PYSPARK_PYTHON, before the session begins, to a Python that every worker has",
    ),
    (
        r"UnsupportedClassVersionError",
        "a Java is too old for this Spark: install version 17 or newer on that machine and set JAVA_HOME there",
    ),
    (
        r"JAVA_GATEWAY_EXITED",
        "Java ended before Spark was up: the reason stands above, on the standard error of the driver; often JAVA_HOME is not a Java of "
        "version 17 or newer, or spark.driver.memory is more than there is",
    ),
    (
        r"DATA_SOURCE_NOT_FOUND.*?chaffinch",
        "Spark does not find the format chaffinch: in another thread than the one that began the session, call session() before a write; "
        "else the Python of PYSPARK_PYTHON on the driver lacks the package chaffinch: " + _SHIP,
    ),
    (
        r'No FileSystem for scheme "?([\w.+-]+)',
        "Spark has no driver for locations that begin with {0}: name checkpointLocation on a file system that it knows, or give the "
        "session the driver's jar (spark.jars.packages; for s3a: org.apache.hadoop:hadoop-aws)",
    ),
    (
        r"Class (org\.apache\.hadoop\.fs\.[\w.]+) not found",
        "Spark lacks the driver of a file system, {0}: name checkpointLocation on one that it knows, or give the session the driver's jar "
        "(spark.jars.packages)",
    ),
    (
        r"mkdir of (\S+) failed",
        "Spark cannot make the folder {0}: name a checkpointLocation where it may write, and of which no part is a file",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming (?:queries|jobs)",
        "another run has the same checkpointLocation: stop it; of different queries each needs its own",
    ),
    (
        r"does not support Update mode",
        "Spark has no output mode update for formats in Python: write with foreachBatch(KafkaSink(...)) (docs/spark-pipeline.md)",
    ),
    (
        r"Python worker failed to connect back",
        "a Python that Spark has started did not answer within 10 seconds: the machine is too busy, so start the query again; or it ended "
        "at once, as on Spark Connect where the server's Python lacks what pyspark[connect] asks for",
    ),
)
"""What Spark's text has in it -> what to do. The first that fits; `{0}` is what the group found."""


class WorkersUnfit(RuntimeError):
    """Workers on which no query of the format can run. One line: what is wrong, on which host, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker's Python said of itself. `versions`: package -> its version, None where it is missing and "" where it has none."""

    host: str
    executable: str
    versions: Mapping[str, str | None]


def check_workers(spark: SparkSession) -> None:
    """Asks the workers' Pythons for what they need, in one small job; raises WorkersUnfit.

    Reaches the executors that are there when it runs: one task for each of their cores.
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
    """Asks a server of Spark Connect whether it knows the format; raises WorkersUnfit. Its workers are not asked.

    A function sent there would do that, but needs the client's version of Python on the server, which the format does not.
    """
    try:
        _ = spark.read.format("chaffinch").load().schema
    except Exception as error:
        text = str(error)
        if tag_in(text) is not None:  # The format itself, about options that it misses.
            return
        advice = advice_for(text)
        if advice is None:
            raise
        raise WorkersUnfit(f"the server {remote} cannot be used: {advice}") from None


def unfit(workers: Iterable[Worker], version: str = VERSION) -> str | None:
    """What keeps a worker from taking part, in one line: the first that is found. None: all are fit."""
    for worker in sorted(workers, key=lambda each: each.host):
        where = f"the worker's Python {worker.executable} on {worker.host}"
        missing = [name for name in NEEDED if worker.versions.get(name) is None]
        if missing:
            return f"{where} lacks {', '.join(missing)}: {_SHIP}"
        if worker.versions["chaffinch"] != version:
            return f"{where} has chaffinch {worker.versions['chaffinch']}, the driver has {version}: install the same version everywhere"
    return None


def advice_for(text: str) -> str | None:
    """What to do about an error that is Spark's own, in one line; None where nothing is known."""
    for pattern, advice in _ADVICE:
        if found := re.search(pattern, text, re.DOTALL):
            return advice.format(*found.groups())
    return None


def _version_probe() -> Callable[[Iterable[int]], Iterator[tuple[str, str, dict[str, str | None]]]]:
    """What runs in a worker. It is pickled by value, with nothing of this module: Chaffinch may be what is missing there."""
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
