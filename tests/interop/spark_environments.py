"""Other releases of Spark than that of `.venv`, what Spark Connect needs, and a store that plays S3: each a folder that comes before
`.venv` on Python's path.

    python -m tests.interop.spark_environments                                     # makes all of them: some 1.8 GB
    python -m tests.interop.spark_environments spark-4.1 pytest tests/spark    # makes one and runs a command of .venv in it: `make pyspark`

Everything but PySpark itself is that of `.venv`, so a difference between two runs is Spark's. `connector_jars()`: Spark's own Kafka
connector, which exists for `spark-4.2`; to be handed over as `spark.jars`. All are pinned in `spark_parts/` and kept in `.interop/`.
Raises NotRun where something cannot be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.apache_kafka import FETCH_SECONDS, MAVEN_PLUGIN
from tests.interop.installing import CACHE, INSTALL_SECONDS, system_package
from tests.interop.processes import NotRun, run

PARTS = Path(__file__).with_name("spark_parts")
POM = PARTS / "pom.xml"
ENVIRONMENTS = tuple(sorted(path.stem for path in PARTS.glob("*.lock")))
"""`spark-4.1`, `spark-4.2`; `spark-connect`: the packages that Connect needs beside the Spark of `.venv`; `object-store`: moto's S3."""


def environment(name: str) -> Path:
    """The folder of an environment, filled unless it is there."""
    lock, folder = PARTS / f"{name}.lock", CACHE / name
    done = folder / ".done"
    if done.exists() and done.stat().st_mtime_ns >= lock.stat().st_mtime_ns:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    # PySpark comes as source. Its dependencies are those of .venv, hence none are taken here.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(lock)]
    installed = run(install, timeout_s=INSTALL_SECONDS)
    if not installed.succeeded:
        raise NotRun(f"installing {name} failed: {(installed.output + installed.errors).strip()[-400:]}")
    done.touch()
    return folder


def variables(name: str) -> dict[str, str]:
    """The environment of a process that is to run in `name`."""
    paths = [str(environment(name)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def connector_jars() -> str:
    """The jars of the Spark Kafka connector, as a `spark.jars` value."""
    folder = CACHE / "spark-connector"
    done = folder / ".done"
    if not done.exists() or done.stat().st_mtime_ns < POM.stat().st_mtime_ns:
        maven = system_package("mvn", "maven")
        fetched = run([maven, "-B", "-q", "-f", POM, MAVEN_PLUGIN, f"-DoutputDirectory={folder}"], timeout_s=FETCH_SECONDS)
        if not fetched.succeeded:
            raise NotRun(f"Maven could not fetch Spark's Kafka connector: {(fetched.output + fetched.errors).strip()[-500:]}")
        done.touch()
    return ",".join(sorted(str(jar) for jar in folder.glob("*.jar")))


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        for name in ENVIRONMENTS:
            print(f"{name}: {environment(name)}", flush=True)
        print(f"connector: {connector_jars()}")
        return 0
    name, *command = arguments
    if name not in ENVIRONMENTS:
        print(f"there is no environment {name!r}; there are: {', '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    if not command:
        print(environment(name))
        return 0
    program = Path(sys.executable).with_name(command[0])
    return subprocess.run([program if program.exists() else command[0], *command[1:]], env=variables(name), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
