"""Arguments of `session`, its default master, and the state after a failed session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyspark
import pytest

from chaffinch.errors import ConfigException
from chaffinch.spark import java, workers
from chaffinch.spark.java import find_java_home
from chaffinch.spark.session import master_of, session
from chaffinch.spark.worker_python import VARIABLES
from chaffinch.spark.workers import WorkersUnfit

MASTERS = "it must be local[*], local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn; a server of Spark Connect is given as remote"


@pytest.mark.parametrize(
    ("environment", "master"),
    [
        ({}, "local[*]"),
        ({"PYSPARK_SUBMIT_ARGS": "pyspark-shell"}, "local[*]"),
        ({"PYSPARK_SUBMIT_ARGS": '"--master" "spark://host:7077" "pyspark-shell"'}, None),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=yarn pyspark-shell"}, None),
        ({"PYSPARK_GATEWAY_PORT": "40001"}, None),
    ],
)
def test_master_of_spark_submit_is_kept(environment: Mapping[str, str], master: str | None) -> None:
    assert master_of(None, environment) == master
    assert master_of("local[3]", environment) == "local[3]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"app_name": None}, "app_name cannot be None: it must be a string"),
        ({"config": 5}, "config cannot be a value of type int: it must be a mapping"),
        ({"config": [("spark.ssl.keyPassword", "S3cret")]}, "config cannot be a value of type list: it must be a mapping"),
        ({"config": {5: "x"}}, "config cannot have the name 5: it must be a mapping of Spark option names, as strings"),
        ({"config": {"spark.jars": ["a"]}}, "config's spark.jars cannot be ['a']: it must be a string, a number, True or False"),
        ({"master": "foo"}, f"master cannot be 'foo': {MASTERS}"),
        ({"master": ""}, f"master cannot be '': {MASTERS}"),
        ({"master": 2}, f"master cannot be 2: {MASTERS}"),
        ({"master": "local[0]"}, f"master cannot be 'local[0]': {MASTERS}"),
        ({"master": "spark:host:7077"}, f"master cannot be 'spark:host:7077': {MASTERS}"),
        ({"master": "sc://a"}, f"master cannot be 'sc://a': {MASTERS}"),
        ({"config": {"spark.master": "foo"}}, f"config's spark.master cannot be 'foo': {MASTERS}"),
        ({"remote": "http://a"}, "remote cannot be 'http://a': it must be sc://HOST:PORT"),
        ({"remote": ""}, "remote cannot be '': it must be sc://HOST:PORT"),
        ({"remote": "sc://"}, "remote cannot be 'sc://': it must be sc://HOST:PORT"),
        ({"master": "local", "remote": "sc://a"}, "master=local and remote=sc://a exclude each other: a server of Spark Connect has"),
        ({"master": "local", "config": {"spark.remote": "sc://a"}}, "master=local and remote=sc://a exclude each other"),
        (
            {"master": "local", "config": {"spark.master": "yarn"}},
            "master=local and config's spark.master=yarn set the same option: leave one of them out",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigException, match=re.escape(text)):
        session(**arguments)


def test_wrong_spark_remote_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "http://a")
    with pytest.raises(ConfigException, match=r"SPARK_REMOTE cannot be 'http://a': it must be sc://HOST:PORT"):
        session()


@pytest.mark.parametrize("value", [np.datetime64("2026-01-01"), np.array([1])])
def test_numpy_array_in_config_is_refused(value: object) -> None:
    with pytest.raises(ConfigException, match=r"config's spark.cores.max cannot be .*: it must be a string, a number, True or False"):
        session(config={"spark.cores.max": value})


@pytest.mark.parametrize("arguments", [{}, {"remote": "sc://host:15002"}], ids=str)
def test_missing_pyspark_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: Mapping[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ModuleNotFoundError, match=r"^pyspark is not installed: pip install 'chaffinch\[spark\]'$") as raised:
        session("x", **arguments)
    assert raised.value.name == "pyspark"  # The command looks at that.


PANDAS = "PySpark does not yet fully support pandas >= 3.0.0. Some features may not work correctly."


@pytest.mark.parametrize(
    ("text", "kind", "module", "is_shown"),
    [
        (PANDAS, FutureWarning, "pyspark.testing.utils", False),
        (PANDAS, FutureWarning, "pyspark.sql.pandas.conversion", True),
        (PANDAS, FutureWarning, "__main__", True),
        (PANDAS, DeprecationWarning, "pyspark.testing.utils", True),
        ("PySpark does something else.", FutureWarning, "pyspark.testing.utils", True),
    ],
)
def test_pandas_warning_of_test_module_is_ignored(
    builder: Builder, text: str, kind: type[FutureWarning | DeprecationWarning], module: str, is_shown: bool
) -> None:
    """What it says where pandas is used is; and nothing else is kept back."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        session("x", master="local", check=False)
        warnings.warn_explicit(text, kind, "utils.py", 1, module=module)
    assert [str(each.message) for each in warned] == ([text] if is_shown else [])


@pytest.mark.skipif(pyspark.__version__.startswith("4.1."), reason="PySpark 4.1 says nothing of pandas 3")
def test_pandas_warning_still_has_expected_text() -> None:
    """In the module that each session loads, whatever the release of pandas is."""
    program = (
        "import pandas; pandas.__version__ = '3.0.0'; from chaffinch.spark import session as made; import sys;"
        " sys.modules['chaffinch.spark.session']._ignore_pandas_warning(); import pyspark.testing.utils;"
        " pyspark.sql.pandas.utils.require_minimum_pandas_version()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.findall(r"(\S+):\d+: FutureWarning: PySpark does not yet fully support pandas", done.stderr) == ["<string>"]


class Running:
    """Stands for a session on a cluster, and for its context."""

    def __init__(self, master: str) -> None:
        self.sparkContext = self
        self.master = master
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Builder:
    """Stands for PySpark's."""

    def __init__(self) -> None:
        self.configured: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        return self.config("spark.app.name", name)

    def master(self, name: str) -> Builder:
        return self.config("spark.master", name)

    def remote(self, name: str) -> Builder:
        return self.config("spark.remote", name)

    def config(self, key: str, value: str) -> Builder:
        self.configured[key] = value
        return self

    def getOrCreate(self) -> Running:
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        self.made = Running(self.configured["spark.master"])
        return self.made


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    from pyspark.sql import SparkSession

    builder = Builder()
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setattr(java, "use_java", lambda: os.environ.update({"JAVA_HOME": "/found"}))
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return builder


def unfit(spark: Connected | Running) -> None:
    raise WorkersUnfit("the workers lack something")


@pytest.mark.parametrize("is_there_before", [False, True])
def test_failed_session_restores_environment(builder: Builder, monkeypatch: pytest.MonkeyPatch, is_there_before: bool) -> None:
    """Neither the session, which the next call would return, nor a Python, nor Spark Connect, which a Spark builder would find."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", builder if is_there_before else None)
    monkeypatch.setattr(workers, "check_workers", unfit)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/usr/bin/python3")
    before = dict(os.environ)
    with pytest.raises(WorkersUnfit):
        session(config={"spark.master": "spark://host:7077", "spark.cores.max": None})
    assert dict(os.environ) == before
    assert builder.made.is_stopped != is_there_before


class Connected:
    """Stands for PySpark's class of sessions of Spark Connect, and for one of them."""

    made: ClassVar[Connected | None] = None
    release_session_on_close = True

    @classmethod
    def getActiveSession(cls) -> Connected | None:
        return cls.made

    @classmethod
    def _get_default_session(cls) -> Connected | None:
        return cls.made

    def stop(self) -> None:
        assert not self.release_session_on_close
        type(self).made = None


@pytest.mark.parametrize("is_there_before", [False, True])
@pytest.mark.parametrize("fails_at_once", [False, True])
def test_failed_connect_session_is_stopped(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, is_there_before: bool, fails_at_once: bool
) -> None:
    """PySpark caches it before its first request, and returns it even for another server."""
    before = Connected() if is_there_before else None
    monkeypatch.setattr(Connected, "made", before)
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", SimpleNamespace(SparkSession=Connected))

    def connect() -> Connected:
        Connected.made = made = before or Connected()
        if fails_at_once:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(builder, "getOrCreate", connect)
    monkeypatch.setattr(workers, "check_server", lambda spark, remote: unfit(spark))
    with pytest.raises(KeyboardInterrupt if fails_at_once else WorkersUnfit):
        session(remote="sc://host")
    assert Connected.made is before


def test_master_in_config_is_used(builder: Builder) -> None:
    """Taken for this machine's, the driver would listen where no executor reaches it."""
    session(config={"spark.master": "spark://host:7077", "spark.cores.max": None}, check=False)
    assert builder.configured["spark.master"] == "spark://host:7077"
    assert "spark.cores.max" not in builder.configured
    assert "SPARK_LOCAL_IP" not in os.environ
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_numpy_numbers_are_accepted(builder: Builder) -> None:
    numbers = {"int": np.int64(-5), "uint": np.uint8(5), "float": np.float64(0.5), "half": np.float16(0.5), "true": np.bool_(True)}
    session(config={"spark.master": "spark://host:7077", **numbers}, check=False)
    expected = {"int": "-5", "uint": "5", "float": "0.5", "half": "0.5", "true": "true"}
    assert {name: builder.configured[name] for name in numbers} == expected


class Turns:
    """Stands for the lock; `asked` is set when a second thread waits for it."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            self.asked.set()
            self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_failed_session_keeps_environment_of_other_thread(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one begins when the first has set its Python and not failed yet."""
    turns = Turns()
    monkeypatch.setattr(sys.modules["chaffinch.spark.session"], "_session_lock", turns)

    def begin() -> None:
        session(config={"spark.master": "spark://host:7077"}, check=False)
        turns.asked.set()

    def make() -> Running:
        if threading.current_thread() is not other:
            other.start()
            assert turns.asked.wait(10)
            raise KeyboardInterrupt
        return Running("spark://host:7077")

    other = threading.Thread(target=begin)
    monkeypatch.setattr(builder, "getOrCreate", make)
    with pytest.raises(KeyboardInterrupt):
        begin()
    other.join()
    assert {name: os.environ.get(name) for name in VARIABLES} == dict.fromkeys(VARIABLES, sys.executable)


@pytest.mark.spark
def test_submitted_job_uses_its_master(tmp_path: Path) -> None:
    import pyspark

    job = tmp_path / "job.py"
    job.write_text("from chaffinch.spark import session\nprint('on', session(check=False).sparkContext.master)\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "JAVA_HOME": str(find_java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(job)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "on local[1]"


@pytest.mark.spark
def test_python_without_package_is_refused_in_local_mode(tmp_path: Path) -> None:
    """Otherwise the first write says that Spark finds no format of this name, or that Arrow is missing, in a Java stack trace."""
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    begin = "from chaffinch.spark import session\ntry: session(master='local[1]')\nexcept Exception as error: print(repr(error))"
    inherited = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, "PYTHONPATH"}}
    environment = inherited | {"PYSPARK_PYTHON": str(python)}
    done = subprocess.run([sys.executable, "-c", begin], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()[-1]
    assert said.startswith(f"WorkersUnfit(\"the worker's Python {python} on ")
    assert " lacks chaffinch, pyarrow, numpy, numba, crc32c, cramjam: install it for that Python" in said
