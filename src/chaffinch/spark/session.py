"""SparkSession factory: finds Java and the right Python for the workers.

Spark starts its Python workers with the program in ``PYSPARK_PYTHON``. By default that is the first ``python3`` on the path, which
rarely has Chaffinch installed. On one machine `session` sets it to the program of `worker_python.py`.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from chaffinch.public_names import exported_from
from chaffinch.spark.worker_python import VARIABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Shortens the Python traceback of a worker in errors to the frames outside Spark.
_COMMON_CONFIG: Mapping[str, str] = {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true"}
_DEFAULTS: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **_COMMON_CONFIG}
# Argument -> (pattern of the values that Spark accepts, description). Checked here, because for a wrong master Spark only reports that
# Java has ended, and for a wrong server that packages are missing.
_LOCATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "master": (
        r"local(\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|(spark|k8s)://.+",
        "local[*], local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn; a server of Spark Connect is given as remote",
    ),
    "remote": (r"sc://[^/;]+.*|local.*", "sc://HOST:PORT"),
}
# Variables that a session may have set before it fails. They are restored for the next session or Spark builder.
_VARIABLES_SET: Final = ("JAVA_HOME", *VARIABLES, "SPARK_LOCAL_IP", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
_CONFIG: Final = "it must be a mapping of Spark option names, as strings, to values"
# The environment is shared by all threads: without the lock, a failing session would undo the settings of another thread.
_session_lock: Final = RLock()


@exported_from("chaffinch.spark")
def session(
    app_name: str = "chaffinch",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
    check: bool = True,
) -> SparkSession:
    """Get or create a SparkSession in which the format ``chaffinch`` is registered.

    In this process ``start()`` then refuses output mode update for the format, and ``save()`` explains a missing ``mode("append")``;
    otherwise Spark reports these errors later, or without a remedy.

    Sets ``JAVA_HOME`` of this process, and ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` unless they are set. If it fails, these
    variables are restored.

    - In a thread other than the first one it returns the same session, and enables writes in the format from that thread.
    - Concurrent calls run one after another. Code that changes these variables in another way during a call may lose its changes.
    - Ctrl-C, or a SIGTERM whose handler raises, first ends the Java that is being started.

    Args:
        app_name: the name that Spark shows.
        master: where Spark runs: ``local[*]``, ``local[N]``, ``spark://HOST:PORT``, ``k8s://HOST:PORT`` or ``yarn``. Default: ``local[*]``,
            or the master that ``spark-submit`` has set.
        remote: a Spark Connect server, such as ``sc://host:15002``. Default: the environment variable ``SPARK_REMOTE``. Java and Python are
            then those of the server.
        config: Spark configuration, in addition to a few defaults: names to strings, numbers, paths or booleans; None values are skipped.
        check: run a small job on a cluster to check that its workers have the packages of the format, or check that a server supports the
            format.

    Returns:
        The session: an existing one of this process, or a new one.

    Raises:
        ConfigException: an argument is invalid.
        JavaNotFound: there is no Java of version 17 or newer; the message names the package to install.
        ModuleNotFoundError: PySpark is not installed.
        WorkersUnfit: a worker or the server lacks a package or has a different version.
    """
    from chaffinch.errors import ConfigException

    if not isinstance(app_name, str):
        raise ConfigException(f"app_name cannot be {app_name!r}: it must be a string, the name that Spark shows")
    if config is not None and not isinstance(config, Mapping):  # Its value may be secret, so it is not shown.
        raise ConfigException(f"config cannot be a value of type {type(config).__name__}: {_CONFIG}")
    for key in config or {}:
        if not isinstance(key, str):
            raise ConfigException(f"config cannot have the name {key!r}: {_CONFIG}")
    given = {key: to_conf_string(f"config's {key}", value) for key, value in (config or {}).items() if value is not None}
    master, remote = _checked_location("master", master, given), _checked_location("remote", remote, given)
    if master is not None and remote is not None:
        raise ConfigException(f"master={master} and remote={remote} exclude each other: a server of Spark Connect has its own master")
    if master is None and remote is None and os.environ.get("SPARK_REMOTE"):
        remote = _validated("remote", "SPARK_REMOTE", os.environ["SPARK_REMOTE"])
    if find_spec("pyspark") is None:
        raise ModuleNotFoundError("pyspark is not installed: pip install 'chaffinch[spark]'", name="pyspark")
    with _session_lock, _environment_restored_on_failure():
        if remote is not None:
            return _remote_session(app_name, remote, given, check=check)
        return _session(app_name, master, given, check=check)


def _checked_location(name: str, given: str | None, config: Mapping[str, str]) -> str | None:
    """The argument `master` or `remote`, or its value in `config` under Spark's name. Raises ConfigException."""
    from chaffinch.errors import ConfigException

    configured = config.get(f"spark.{name}")
    if given is None or configured is None:
        return _validated(name, name, given) if configured is None else _validated(name, f"config's spark.{name}", configured)
    raise ConfigException(f"{name}={given} and config's spark.{name}={configured} set the same option: leave one of them out")


def _validated(kind: str, name: str, value: str | None) -> str | None:
    from chaffinch.errors import ConfigException
    from chaffinch.settings import shown_value

    pattern, allowed = _LOCATIONS[kind]
    if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value)):
        raise ConfigException(f"{name} cannot be {shown_value(value)}: it must be {allowed}")
    return value


@contextmanager
def _environment_restored_on_failure() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _VARIABLES_SET}
    try:
        yield
    except BaseException:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        raise


def _remote_session(app_name: str, remote: str, config: Mapping[str, str], *, check: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    from chaffinch.spark.write_modes import add_checks

    before = _connect_session()
    try:
        spark = _configured(SparkSession.builder.appName(app_name).remote(remote), {**_COMMON_CONFIG, **config})
        if check:
            from chaffinch.spark.workers import check_server

            check_server(spark, remote)
    except BaseException:
        new = _connect_session()
        if new is not None and new is not before:  # Otherwise the next call would get this session even for another server.
            new.release_session_on_close = False  # Otherwise closing waits minutes for a server that does not respond.
            new.stop()
        raise
    add_checks(is_connect=True)
    return spark


def _connect_session() -> Any:
    """The Spark Connect session that a builder would return in this thread; None if there is none."""
    connect = sys.modules.get("pyspark.sql.connect.session")
    return connect and (connect.SparkSession.getActiveSession() or connect.SparkSession._get_default_session())


def _session(app_name: str, master: str | None, config: Mapping[str, str], *, check: bool) -> SparkSession:
    from chaffinch.spark.interruption import JavaStart
    from chaffinch.spark.java import use_java
    from chaffinch.spark.task_facts import is_one_machine
    from chaffinch.spark.worker_python import is_own, use_python
    from chaffinch.spark.write_modes import add_checks

    use_java()
    _ignore_pandas_warning()
    master = master_of(master, os.environ)
    use_python(is_one_machine=is_one_machine(master))
    # Spark binds to the host name, which fails on a machine whose name does not resolve.
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    is_new = SparkContext._active_spark_context is None
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    try:
        with JavaStart():
            spark = _configured(builder, {**_DEFAULTS, **config})
    except (KeyboardInterrupt, SystemExit):
        if is_new and (started := SparkSession._instantiatedSession) is not None:  # A session in a Java that ran before the call.
            started.stop()
        raise
    activate_session()
    add_checks(is_connect=False)
    if check and not (is_one_machine(spark.sparkContext.master) and is_own(spark.sparkContext.pythonExec)):
        from chaffinch.spark.workers import check_workers

        try:
            check_workers(spark)
        except BaseException:
            if is_new:  # Otherwise the next call would get this session even after the cause is fixed.
                spark.stop()
            raise
    return spark


def _ignore_pandas_warning() -> None:
    """Ignore the warning about pandas 3 of the PySpark test module, which every session imports. Code that uses pandas, such as
    `toPandas`, still warns.
    """
    text = "PySpark does not yet fully support pandas"
    warnings.filterwarnings("ignore", text, FutureWarning, module=r"pyspark\.testing\.utils")


def master_of(master: str | None, environment: Mapping[str, str]) -> str | None:
    """The master to set: the given one, else `local[*]`; None if the process that started Java has set it.

    `spark-submit` does so, and passes the port of that Java to Python. The arguments of `pyspark` are in the environment.
    """
    is_running = "PYSPARK_GATEWAY_PORT" in environment
    is_chosen = re.search(r"--master\b|\bspark\.master\b", environment.get("PYSPARK_SUBMIT_ARGS", "")) is not None
    return "local[*]" if master is None and not (is_running or is_chosen) else master


def _configured(builder: SparkSession.Builder, config: Mapping[str, str]) -> SparkSession:
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def activate_session() -> None:
    """Make the session of the process the active one of this thread, unless it has one. No effect with Spark Connect.

    Spark looks up Python data sources in the active session of the thread (`DataSource.lookupDataSource`; a read uses the session that it
    was called on). Only the thread that started a session has one: a write in another thread would not find the format.
    """
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    if running is None or running._sc._jsc is None:  # There is no session, or it is stopped.
        return
    sessions = SparkSession._get_j_spark_session_class(running._jvm)
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(running._jsparkSession)


def default_file_system() -> str | None:
    """`spark.hadoop.fs.defaultFS` of the thread's session, which its sinks use; None if it is not set, or without a session."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    return None if running is None else running.conf.get("spark.hadoop.fs.defaultFS", None)


def to_conf_string(name: str, value: object) -> str:
    """Converts a Python value to the string of a Spark configuration or option: from a string, number or path; booleans in lower case.

    Raises ConfigException with `name` for values of other types.
    """
    from chaffinch.errors import ConfigException
    from chaffinch.settings import is_secret, shown_value

    numpy = sys.modules.get("numpy")  # A numpy number implies that numpy is loaded.
    plain = value.item() if numpy is not None and isinstance(value, numpy.generic) else value
    if not isinstance(plain, str | bool | int | float | PathLike):
        shown = f"a {type(value).__name__} (not shown)" if is_secret(name) else shown_value(value)
        raise ConfigException(f"{name} cannot be {shown}: it must be a string, a number, True or False")
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
