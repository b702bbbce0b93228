"""A standalone Spark cluster on loopback: a master and two workers under addresses of their own, as if they were three machines.

    with StandaloneCluster(folder) as cluster:
        found = run_driver(cluster.master, folder, {"batch": {"servers": ..., "topic": ..., ...}})

Spark takes 127.0.0.2 and 127.0.0.3 for two hosts, so that it places speculative copies on the other one. Each worker has one core
and one executor of 512 MB; the driver is a process of its own (`cluster_driver.py`), since pytest's process may hold another
session. Six Java machines in all: one cluster at a time. Linux only: elsewhere 127.0.0.2 is not a local address.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow
import pyspark

from chaffinch.spark.java import find_java_home
from tests.interop.processes import Server, run
from tests.interop.spark_environments import environment as spark_environment

HOSTS = ("127.0.0.2", "127.0.0.3")
SPARK_HOME = Path(pyspark.__file__).parent
START_S = 180.0
DRIVER_S = 1200.0
"""Loaded machines are slow: this ends what hangs."""
DRIVER = Path(__file__).with_name("cluster_driver.py")
_MASTER_AT = "Starting Spark master at "


class StandaloneCluster:
    """Started by the constructor, stopped at the end of the `with` block, killed when this process dies; executors end with theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[Server] = []
        # Its threads stay: a process that `Server` started dies with the thread that did.
        self._starters = ThreadPoolExecutor(len(HOSTS))
        try:
            master = self._start("Master", "127.0.0.1", _MASTER_AT)
            self.master = master.ready_line.partition(_MASTER_AT)[2].strip()
            list(self._starters.map(self._start_worker, HOSTS))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def work_of(self, host: str) -> Path:
        """Where a worker unpacks what is shipped, and where its executors run."""
        return self.folder / f"work-{host}"

    def stop(self) -> None:
        while self._servers:
            self._servers.pop().stop()
        self._starters.shutdown()

    def _start_worker(self, host: str) -> None:
        arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.work_of(host)), self.master)
        self._start("Worker", host, "Successfully registered with master", *arguments)

    def _start(self, role: str, host: str, ready_text: str, *arguments: str) -> Server:
        environment = {
            "JAVA_HOME": str(find_java_home()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYTHONPATH": "",  # What a worker has on its path is part of each test.
        }
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        command = [str(SPARK_HOME / "bin" / "spark-class"), name, "--host", host, "--port", "0", "--webui-port", "0", *arguments]
        log = self.folder / f"{role.lower()}-{host}.log"
        server = Server(command, ready_text=ready_text, log=log, timeout_s=START_S, environment=environment)
        self._servers.append(server)
        return server


def bare_python(folder: Path) -> Path:
    """A Python with all that Chaffinch needs, and without Chaffinch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # Spark is a release of its own where `spark_environments` runs this.
    found = dict.fromkeys((SPARK_HOME.parent, Path(pyarrow.__file__).parents[1]))
    (site_packages(folder) / "rest.pth").write_text("".join(f"{place}\n" for place in found))
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python3*/site-packages"))


def connect_server(folder: Path, python: Path | str = sys.executable) -> Server:
    """A server of Spark Connect in local mode; its address is the end of `ready_line`."""
    settings = {"spark.connect.grpc.binding.port": 0, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.ui.enabled": "false"}
    settings |= {"spark.driver.memory": "512m", "spark.sql.warehouse.dir": folder / "warehouse", "spark.sql.shuffle.partitions": 2}
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {"JAVA_HOME": str(find_java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    # What `foreachBatch` calls is a client of the server, too.
    environment["PYTHONPATH"] = str(spark_environment("spark-connect"))
    ready, log = "Spark Connect server started at: ", folder / "connect.log"
    return Server([*command, "spark-internal"], ready_text=ready, log=log, timeout_s=START_S, environment=environment)


def run_driver(
    master: str,
    folder: Path,
    calls: Mapping[str, Mapping[str, Any]],
    *,
    config: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (sys.executable, str(DRIVER)),
) -> dict[str, Any]:
    """Functions of `cluster_driver.py`, each with its arguments, in one session of a process of its own -> what each found out.

    Fails with the end of what the process printed.
    """
    given = {"master": master, "config": dict(config or {}), "calls": calls}
    (folder / "calls.json").write_text(json.dumps(given, default=str))
    variables = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "local-cluster"), **(environment or {})}
    done = run([*command, str(folder)], timeout_s=DRIVER_S, environment=variables, folder=folder)
    found = folder / "found.json"
    assert found.exists(), f"exit status {done.exit_status}\n{(done.output + done.errors)[-6000:]}"
    answer: dict[str, Any] = json.loads(found.read_text())
    found.unlink()
    return answer
