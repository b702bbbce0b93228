"""Where a session runs whose master nobody gives in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaffinch.spark.java import find_java_home
from chaffinch.spark.session import master_of


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
def test_what_spark_submit_has_set_stays(environment, master):
    assert master_of(None, environment) == master
    assert master_of("local[3]", environment) == "local[3]"


@pytest.mark.spark
def test_a_job_that_is_submitted_runs_where_it_was_submitted_to(tmp_path):
    import pyspark

    job = tmp_path / "job.py"
    job.write_text("from chaffinch.spark import session\nprint('on', session(check=False).sparkContext.master)\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "JAVA_HOME": str(find_java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", job]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "on local[1]"
