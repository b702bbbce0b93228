"""Builds a SparkSession that finds Java and the right Python.

Spark starts its Python workers by the name in ``PYSPARK_PYTHON``; without it, the first ``python3`` on the path is
taken, which is rarely the interpreter that has Chaffinch installed. On one machine it is `worker_python.py` around this interpreter.
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

from chaffinch.spark.worker_python import VARIABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seen in errors: the Python traceback of a worker without Spark's own frames around it.
_COMMON_CONFIG: Mapping[str, str] = {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true"}
_DEFAULTS: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **_COMMON_CONFIG}
# Where a session may run -> what Spark takes for that, and in words. Of a wrong master Spark says only that Java has ended, and of a
# wrong server first that packages are missing.
_LOCATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "master": (
        r"local(\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|(spark|k8s)://.+",
        "local[*], local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn; a server of Spark Connect is given as remote",
    ),
    "remote": (r"sc://[^/;]+.*|local.*", "sc://HOST:PORT"),
}
# What a session that fails may have set: the next one, or a builder of Spark's own, must not find it.
_VARIABLES_SET: Final = ("JAVA_HOME", *VARIABLES, "SPARK_LOCAL_IP", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
_CONFIG: Final = "it must be a mapping of Spark's names, as strings, to values"
# The environment is the process's: a session that fails would take away what another thread's has set in between.
_session_lock: Final = RLock()


def session(
    app_name: str = "chaffinch",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
    check: bool = True,
) -> SparkSession:
    """A SparkSession on ``master`` (default: ``local[*]``, or what ``spark-submit`` set), with ``config`` on top of our few defaults.

    Sets ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` of this process, the latter two unless set already; nothing where
    it fails. In another thread than the first one's it returns the same session, and lets that thread write in the format. Threads that
    call it at the same time get their sessions one after another, so that none takes back what another's has set; whoever sets these
    variables in another way meanwhile may find them as they were before.
    The format ``chaffinch`` is known in it by name. With ``remote``, such as ``sc://host:15002``, or ``SPARK_REMOTE`` in the
    environment, a session of that server of Spark Connect: Java and Python are the server's. ``check``: on a cluster, ask the workers
    in a small job whether they have what the format needs, and a server whether it knows the format.
    Ctrl-C, and a SIGTERM whose handler raises, end the Java that is started here first.
    Errors: JavaNotFound, with what to install, and ModuleNotFoundError for PySpark; WorkersUnfit, with what a worker or server lacks;
    ConfigException.
    """
    from chaffinch.errors import ConfigException

    if not isinstance(app_name, str):
        raise ConfigException(f"app_name cannot be {app_name!r}: it must be a string, the name that Spark shows")
    if config is not None and not isinstance(config, Mapping):  # Its value may be secret.
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
    """Where the session shall run, as the argument of this name says, or `config` under Spark's name for it. ConfigException."""
    from chaffinch.errors import ConfigException

    configured = config.get(f"spark.{name}")
    if given is None or configured is None:
        return _validated(name, name, given) if configured is None else _validated(name, f"config's spark.{name}", configured)
    raise ConfigException(f"{name}={given} and config's spark.{name}={configured} say the same: leave one of them out")


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

    before = _connect_session()
    try:
        spark = _configured(SparkSession.builder.appName(app_name).remote(remote), {**_COMMON_CONFIG, **config})
        if check:
            from chaffinch.spark.workers import check_server

            check_server(spark, remote)
    except BaseException:
        new = _connect_session()
        if new is not None and new is not before:  # Else whoever names another server would be given this one again.
            new.release_session_on_close = False  # A server that does not answer would be asked for minutes.
            new.stop()
        raise
    return spark


def _connect_session() -> Any:
    """The session of Spark Connect that a builder would return in this thread; None where there is none."""
    connect = sys.modules.get("pyspark.sql.connect.session")
    return connect and (connect.SparkSession.getActiveSession() or connect.SparkSession._get_default_session())


def _session(app_name: str, master: str | None, config: Mapping[str, str], *, check: bool) -> SparkSession:
    from chaffinch.spark.interruption import JavaStart
    from chaffinch.spark.java import use_java
    from chaffinch.spark.task_facts import is_one_machine
    from chaffinch.spark.worker_python import is_own, use_python

    use_java()
    _ignore_pandas_warning()
    master = master_of(master, os.environ)
    use_python(is_one_machine=is_one_machine(master))
    # Spark binds to the name of the host; a machine whose name does not resolve would stop here for no reason of ours.
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
        if is_new and (started := SparkSession._instantiatedSession) is not None:  # In a Java that was there before.
            started.stop()
        raise
    activate_session()
    if check and not (is_one_machine(spark.sparkContext.master) and is_own(spark.sparkContext.pythonExec)):
        from chaffinch.spark.workers import check_workers

        try:
            check_workers(spark)
        except BaseException:
            if is_new:  # Else whoever sets right what was wrong would be given this one again.
                spark.stop()
            raise
    return spark


def _ignore_pandas_warning() -> None:
    """Of pandas 3 PySpark warns when its module for tests looks for pandas, which each session loads whether it uses pandas or not. Whoever
    does use it, as by `toPandas`, is warned there as ever."""
    text = "PySpark does not yet fully support pandas"
    warnings.filterwarnings("ignore", text, FutureWarning, module=r"pyspark\.testing\.utils")


def master_of(master: str | None, environment: Mapping[str, str]) -> str | None:
    """What the session is to be told of its master: the one given, else `local[*]`; None where whoever has started Java has said it.

    `spark-submit` does so, and tells Python the port of that Java; of `pyspark` the arguments are known."""
    is_running = "PYSPARK_GATEWAY_PORT" in environment
    is_chosen = re.search(r"--master\b|\bspark\.master\b", environment.get("PYSPARK_SUBMIT_ARGS", "")) is not None
    return "local[*]" if master is None and not (is_running or is_chosen) else master


def _configured(builder: SparkSession.Builder, config: Mapping[str, str]) -> SparkSession:
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def activate_session() -> None:
    """Makes the session of the process that of this thread, unless it has one; nothing on Spark Connect, whose server sees to that.

    Spark looks for a format in Python among those of the thread's active session (`DataSource.lookupDataSource`; for reads, of the session
    that reads). Only the thread that began a session has one: in every other there would be no format chaffinch for a write.
    """
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    if running is None or running._sc._jsc is None:  # None that has begun, or that has not been stopped.
        return
    sessions = SparkSession._get_j_spark_session_class(running._jvm)
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(running._jsparkSession)


def default_file_system() -> str | None:
    """`spark.hadoop.fs.defaultFS` of the thread's session, as its sinks see it; None where that is not set, or there is no session."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    return None if running is None else running.conf.get("spark.hadoop.fs.defaultFS", None)


def to_conf_string(name: str, value: object) -> str:
    """A Python value as Spark takes it, as text, in its configuration and as an option: a string, a number or a path; true and false
    in lower case. ConfigException, naming it so, for all else."""
    from chaffinch.errors import ConfigException
    from chaffinch.settings import is_secret, shown_value

    numpy = sys.modules.get("numpy")  # Whoever has a number of numpy's has loaded it.
    plain = value.item() if numpy is not None and isinstance(value, numpy.generic) else value
    if not isinstance(plain, str | bool | int | float | PathLike):
        shown = f"a {type(value).__name__} (not shown)" if is_secret(name) else shown_value(value)
        raise ConfigException(f"{name} cannot be {shown}: it must be a string, a number, True or False")
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
