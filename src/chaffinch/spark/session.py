"""Builds a SparkSession that finds Java and the right Python.

Spark starts its Python workers by the name in ``PYSPARK_PYTHON``; without it, the first ``python3`` on the path is
taken, which is rarely the interpreter that has Chaffinch installed. On one machine it is `worker_python.py` around this interpreter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chaffinch.spark import interruption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seen in errors: the Python traceback of a worker without Spark's own frames around it.
_OF_EVERY_SESSION: Mapping[str, str] = {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true"}
_DEFAULTS: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **_OF_EVERY_SESSION}


def session(
    app_name: str = "chaffinch",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
    check: bool = True,
) -> SparkSession:
    """A SparkSession on ``master`` (default: ``local[*]``, or what ``spark-submit`` set), with ``config`` on top of our few defaults.

    Sets ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` of this process, the latter two unless set already.
    The format ``chaffinch`` is known in it by name. With ``remote``, such as ``sc://host:15002``, or ``SPARK_REMOTE`` in the
    environment, a session of that server of Spark Connect: Java and Python are the server's. ``check``: on a cluster, ask the workers
    in a small job whether they have what the format needs, and a server whether it knows the format.
    Ctrl-C is answered when Java has started, which else would stay behind.
    Errors: JavaNotFound, with what to install; WorkersUnfit, with what a worker or server lacks; ConfigException.
    """
    from chaffinch.errors import ConfigException

    if not isinstance(app_name, str):
        raise ConfigException(f"app_name cannot be {app_name!r}: it must be a string, the name that Spark shows")
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(key, str) for key in config)):
        raise ConfigException(f"config cannot be {config!r}: it must be a mapping of Spark's names, as strings, to values")
    if master is not None and remote is not None:
        raise ConfigException(f"master={master} and remote={remote} exclude each other: a server of Spark Connect has its own master")
    if master is None and (remote := remote or os.environ.get("SPARK_REMOTE")):
        return _remote_session(app_name, remote, config or {}, check=check)
    return _session(app_name, master, config or {}, check=check)


def _remote_session(app_name: str, remote: str, config: Mapping[str, object], *, check: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = _configured(SparkSession.builder.appName(app_name).remote(remote), {**_OF_EVERY_SESSION, **config})
    if check:
        from chaffinch.spark.workers import check_server

        check_server(spark, remote)
    return spark


def _session(app_name: str, master: str | None, config: Mapping[str, object], *, check: bool) -> SparkSession:
    from chaffinch.spark.java import use_java
    from chaffinch.spark.sink.places import is_one_machine
    from chaffinch.spark.worker_python import use_python

    use_java()
    master = master_of(master, os.environ)
    use_python(is_one_machine=is_one_machine(master))
    # Spark binds to the name of the host; a machine whose name does not resolve would stop here for no reason of ours.
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    with interruption.noted() as is_interrupted:
        spark = _configured(builder, {**_DEFAULTS, **config})
    if is_interrupted():
        spark.stop()
        raise KeyboardInterrupt
    if check and not is_one_machine(spark.sparkContext.master):
        from chaffinch.spark.workers import check_workers

        check_workers(spark)
    return spark


def master_of(master: str | None, environment: Mapping[str, str]) -> str | None:
    """What the session is to be told of its master: the one given, else `local[*]`; None where whoever has started Java has said it.

    `spark-submit` does so, and tells Python the port of that Java; of `pyspark` the arguments are known."""
    is_running = "PYSPARK_GATEWAY_PORT" in environment
    is_chosen = re.search(r"--master\b|\bspark\.master\b", environment.get("PYSPARK_SUBMIT_ARGS", "")) is not None
    return "local[*]" if master is None and not (is_running or is_chosen) else master


def _configured(builder: SparkSession.Builder, config: Mapping[str, object]) -> SparkSession:
    for key, value in config.items():
        builder = builder.config(key, _spelled(value))
    return builder.getOrCreate()


def _spelled(value: object) -> str:
    """Spark's spelling of a configuration value: true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
